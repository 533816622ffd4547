"""A client's examples, in batches on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Batch = Any  # what a task makes of examples: a tensor, a tuple, a dict, with tensors anywhere in it


class Batches(ABC):
    """What an objective asks of a client's examples; what is drawn depends on the generator alone."""

    count: int | None  # how many examples there are; None where only reading tells
    per_step: int  # how many batches make one local step

    @abstractmethod
    def endless(self, generator: torch.Generator) -> Iterator[Batch]:
        """Deal the examples out in random order, epoch after epoch; what does not fill a step is left out."""

    @abstractmethod
    def some(self, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Give so many examples, chosen at random, or the first of a stream."""

    @abstractmethod
    def all(self) -> Iterator[Batch]:
        """Give every example once."""


class InMemory(Batches):
    """Examples that are rows of tensors, which stay on the device: a step copies nothing to it."""

    count: int

    def __init__(self, tensors: Sequence[Tensor], device: torch.device, *, batch_size: int, at_once: int) -> None:
        self._tensors = tuple(one.to(device) for one in tensors)
        self.count = len(self._tensors[0])
        self._at_once, self.per_step = sizes(self.count, batch_size, at_once)

    def endless(self, generator: torch.Generator) -> Iterator[Batch]:
        """Deal the rows out in random order, epoch after epoch."""
        step = self._at_once * self.per_step
        while True:
            yield from self._epoch(self._shuffled(generator)[: self.count - self.count % step], generator)

    def some(self, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Give some of the rows."""
        return self._rows(self._shuffled(generator)[:count])

    def all(self) -> Iterator[Batch]:
        """Give all rows, in their order."""
        for first in range(0, self.count, self._at_once):
            yield tuple(one[first : first + self._at_once] for one in self._tensors)

    def _epoch(self, places: Tensor, generator: torch.Generator) -> Iterator[Batch]:
        """Give the rows of these places, as training sees them."""
        return self._rows(places)

    def _shuffled(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(self.count, generator=generator, device=self._tensors[0].device)

    def _rows(self, places: Tensor) -> Iterator[Batch]:
        return (tuple(one[chosen] for one in self._tensors) for chosen in torch.split(places, self._at_once))


def sizes(count: int, batch_size: int, at_once: int) -> tuple[int, int]:
    """Return how many of a client's examples go through the network at once, and how often in a step."""
    together = max(1, min(at_once, count))
    return together, max(1, min(batch_size, count) // together)


def moved(batch: Batch, device: torch.device) -> Batch:
    """Return a batch on the device; whatever is like a dict becomes one."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: moved(one, device) for name, one in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(one, device) for one in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(one, device) for one in batch)
    return batch


def examples_in(batch: Batch) -> int:
    """Return how many examples a batch has: the length of its first tensor; 0 where it has none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((count for count in map(examples_in, parts) if count), 0)
