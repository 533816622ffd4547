"""Batches of any Dataset, by torch's DataLoader: data that is larger than memory, read ahead by other processes.

Each example is read under a seed of its own, so that random transforms draw the same in whichever process that is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, count, islice
from operator import getitem
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from common.learning.batches import Batch, Batches, examples_in, moved, sizes
from common.learning.network_task import NetworkTask
from common.learning.own_code import OwnCodeError, own_code
from common.randomness import all_streams, seed_all

_SEEDS = 1 << 32
_END = object()


class ReadAhead:
    """The processes that read ahead, of one client at a time: clients of one problem train in turns."""

    def __init__(self) -> None:
        self._loader: DataLoader[Any] | None = None

    def of(self, data: Dataset[Any], make: Callable[[], DataLoader[Any]]) -> DataLoader[Any]:
        """Return the loader of a client's data, whose processes stay until another client's are wanted."""
        if self._loader is None or self._loader.dataset is not data:
            self._loader = None  # its processes end before others start
            self._loader = make()
        return self._loader

    def end(self) -> None:
        """Drop the loader: the next is made anew."""
        self._loader = None


def batches_of(
    task: NetworkTask, data: Dataset[Any], device: torch.device, place: str, ahead: ReadAhead | None = None
) -> Batches:
    """Return the batches of a dataset; one that is tensors, and is collated as they are, needs no loader."""
    ahead = ahead or ReadAhead()
    if isinstance(data, IterableDataset):
        return StreamLoader(task, data, device, place, ahead)
    if isinstance(data, TensorDataset) and not data.tensors:
        raise OwnCodeError(task, place, "its TensorDataset has no tensors")
    if type(data) is TensorDataset and type(task).collate is NetworkTask.collate:
        return task.in_memory(data.tensors, device)
    return ExamplesLoader(task, data, device, place, ahead)


class _Loader(Batches):
    """What loaders have in common."""

    _at_once: int

    def __init__(self, task: NetworkTask, device: torch.device, place: str, ahead: ReadAhead) -> None:
        self._task, self._device, self._place, self._ahead = task, device, place, ahead

    def _loader(self, data: Dataset[Any], workers: int = 0, **batches: Any) -> DataLoader[Any]:  # noqa: ANN401
        return DataLoader(
            data,
            **batches,
            collate_fn=partial(_called, self._task.collate),
            num_workers=workers,
            pin_memory=self._device.type == "cuda",
            persistent_workers=workers > 0,
            multiprocessing_context="spawn" if workers else None,  # the link's threads do not survive a fork
            worker_init_fn=partial(_leave_if_alone, os.getpid()),
            generator=torch.Generator(),  # else it draws from torch's global state
        )

    def _epoch(self, data: Dataset[Any], make: Callable[[], DataLoader[Any]]) -> Iterator[Batch]:
        """Read an epoch ahead; what has failed, as by a process that died, is made anew for the next round."""
        try:
            yield from self._read_some(self._ahead.of(data, make))
        except Exception:
            self._ahead.end()
            raise

    def _read_some(self, loader: DataLoader[Any]) -> Iterator[Batch]:
        """Read batches, of which there must be one."""
        batches = self._read(loader)
        first = next(batches, _END)
        if first is _END:
            raise OwnCodeError(self._task, self._place, f"it ends before a batch of {self._at_once} examples")
        yield from chain((first,), batches)

    def _read(self, loader: DataLoader[Any]) -> Iterator[Batch]:
        """Read batches, without a trace in the random numbers that others draw."""
        with own_code(self._task, self._place):
            batches = _begun(loader)
        while True:
            with own_code(self._task, self._place), all_streams():
                batch = next(batches, _END)
            if batch is _END:
                return
            if not examples_in(batch):
                raise OwnCodeError(self._task, self._place, "a batch has no tensor in it; `collate` makes batches")
            yield moved(batch, self._device)


class ExamplesLoader(_Loader):
    """Reads a map-style Dataset in random order."""

    count: int

    def __init__(
        self, task: NetworkTask, data: Dataset[Any], device: torch.device, place: str, ahead: ReadAhead
    ) -> None:
        super().__init__(task, device, place, ahead)
        with own_code(task, place):
            self.count = len(cast(Sized, data))
        self._examples = _Examples(data)
        self._at_once, self.per_step = sizes(self.count, task.batch_size, task.at_once)
        self._order = _Order(self._at_once)

    def endless(self, generator: torch.Generator) -> Iterator[Batch]:
        """Read the examples in random order, epoch after epoch."""
        step = self._at_once * self.per_step
        drawn, seeds = _on_cpu(generator), _seeds(generator)
        while True:
            self._order.places = torch.randperm(self.count, generator=drawn)[: self.count - self.count % step]
            self._order.seed = next(seeds)
            yield from self._epoch(self._examples, self._training)

    def some(self, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Read some of the examples."""
        return self._in_order(torch.randperm(self.count, generator=_on_cpu(generator))[:count])

    def all(self) -> Iterator[Batch]:
        """Read all examples, in their order."""
        return self._in_order(torch.arange(self.count))

    def _training(self) -> DataLoader[Any]:
        return self._loader(self._examples, self._task.loader_workers, batch_sampler=self._order)

    def _in_order(self, places: Tensor) -> Iterator[Batch]:
        return self._read(self._loader(self._examples, batch_sampler=_Order(self._at_once, places)))


class StreamLoader(_Loader):
    """Reads an iterable Dataset, in the order that it has itself."""

    def __init__(
        self, task: NetworkTask, data: Dataset[Any], device: torch.device, place: str, ahead: ReadAhead
    ) -> None:
        super().__init__(task, device, place, ahead)
        self.count = None
        self._at_once, self.per_step = sizes(task.batch_size, task.batch_size, task.at_once)
        self._stream = _Stream(data)
        if task.loader_workers:
            self._stream.epoch.share_memory_()  # type: ignore[no-untyped-call]

    def endless(self, generator: torch.Generator) -> Iterator[Batch]:
        """Read the stream, epoch after epoch."""
        for epoch in _seeds(generator):
            self._stream.epoch.fill_(epoch)
            yield from self._epoch(self._stream, self._training)

    def some(self, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Read the first examples, in whole batches."""
        return islice(self._read_some(self._from_start()), -(-count // self._at_once))

    def all(self) -> Iterator[Batch]:
        """Read the stream to its end."""
        return self._read(self._from_start())

    def _training(self) -> DataLoader[Any]:
        workers = min(1, self._task.loader_workers)  # two would not keep its order, and each would read all of it
        return self._loader(self._stream, workers, batch_size=self._at_once, drop_last=True)

    def _from_start(self) -> DataLoader[Any]:
        self._stream.epoch.zero_()
        return self._loader(self._stream, batch_size=self._at_once)


class _Order:
    """Tells a DataLoader the places of each batch, every one with the seed of its example."""

    def __init__(self, at_once: int, places: Tensor | None = None) -> None:
        self.places = torch.empty(0, dtype=torch.int64) if places is None else places
        self.seed = 0
        self._at_once = at_once

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        seeds = count(self.seed)
        for first in range(0, len(self.places), self._at_once):  # torch.split makes a batch of nothing
            yield [(place, next(seeds)) for place in self.places[first : first + self._at_once].tolist()]


class _Examples(Dataset[Any]):
    """A map-style dataset, each example of which is read under its seed."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __getitem__(self, place_and_seed: tuple[int, int]) -> Any:  # noqa: ANN401
        place, seed = place_and_seed
        seed_all(seed)
        return _called(getitem, self._data, place)


class _Stream(IterableDataset[Any]):
    """An iterable dataset that hears of its epoch in whichever process it is, and is read under seeds."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data
        self.epoch = torch.zeros((), dtype=torch.int64)

    def __iter__(self) -> Iterator[Any]:
        epoch = int(self.epoch)
        seed_all(epoch)
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(epoch)
        examples = iter(cast("IterableDataset[Any]", self._data))
        for number in count(epoch):
            seed_all(number)
            example = next(examples, _END)
            if example is _END:
                return
            yield example


def _begun(loader: DataLoader[Any]) -> Iterator[Batch]:
    """Begin an epoch; by another thread where there are processes.

    In the main thread torch would handle SIGCHLD, by an error wherever that thread is when a process dies. Without,
    reading finds out.
    """
    if not loader.num_workers:
        return iter(loader)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(iter, loader).result()


def _leave_if_alone(parent: int, _: int) -> None:
    """End a process whose client has ended while it started: torch notices only what happens later."""
    if os.getppid() != parent:
        os._exit(0)


def _called(code: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """Call a user's code, whose StopIteration is a mistake: it would be taken for the end of an epoch."""
    try:
        return code(*arguments)
    except StopIteration as error:
        raise RuntimeError("it raises StopIteration").with_traceback(error.__traceback__) from None


def _seeds(generator: torch.Generator) -> Iterator[int]:
    """Return a number for each epoch, which depends on the generator's seed alone."""
    drawn = torch.Generator().manual_seed(generator.initial_seed() ^ 1)  # not what the order is drawn from
    return (int(torch.randint(_SEEDS, (), generator=drawn)) for _ in count())


def _on_cpu(generator: torch.Generator) -> torch.Generator:
    """Return a generator for what the CPU draws: the same one, where it is the device."""
    if generator.device.type == "cpu":
        return generator
    return torch.Generator().manual_seed(generator.initial_seed())
