"""A torch module as an algorithm sees it: what is trained is one flat vector, and so are gradient and buffers."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from common.errors import PublicError
from common.rounds.state import ServerState
from common.vectors.flatten import Layout

Sparse = Literal["model", "change"]


class TrainedPart:
    """A module whose trained parameters, their gradients and its buffers are views of three flat vectors.

    What does not require a gradient is frozen: it stays as it was made, and never travels. Of `change` the vector that
    travels is what has been added to the first weights. Objectives that share a module have it in turns, a whole round
    each: clients of one process are threads of it.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, sparse: Sparse = "model", *, compiled: bool = False
    ) -> None:
        self._in_use = threading.Lock()
        self.is_as_made = True
        # BatchNorm's counts of steps: they are never sent, but a state_dict has them.
        counters = {k: v for k, v in module.state_dict().items() if k.endswith("num_batches_tracked")}
        self._counters = {k: v.to("cpu", copy=True) for k, v in counters.items()}
        self.module = module.to(device)
        trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
        _refuse_untrainable(trained)
        self._weight_layout = Layout.of(trained.items())
        self.weights = self._weight_layout.flatten({name: one.detach() for name, one in trained.items()})
        self.gradient = torch.zeros_like(self.weights)
        self.start = self.weights.clone() if sparse == "change" else None
        views, gradients = self._weight_layout.unflatten(self.weights), self._weight_layout.unflatten(self.gradient)
        self._trained = [(parameter, views[name], gradients[name]) for name, parameter in trained.items()]
        self._tied = _aliases(module.named_parameters(remove_duplicate=False), trained)
        saved = module.state_dict()
        # Persistent ones: others are constants of the code, such as tables of positions.
        buffers = {k: v for k, v in module.named_buffers() if k in saved and v.dtype == torch.float32}
        self._buffer_layout = Layout.of(buffers.items())
        self.buffers = self._buffer_layout.flatten(buffers) if buffers else None
        held = {} if self.buffers is None else self._buffer_layout.unflatten(self.buffers)
        self._held = [(*_owner(module, name), view) for name, view in held.items()]
        self._tied |= _aliases(module.named_buffers(remove_duplicate=False), buffers)
        self._put_back()
        # Of the others some count, as BatchNorm's steps: a round must find them as the last one did.
        others = {name: one for name, one in module.named_buffers() if name in saved and name not in buffers}
        self._unsent = [(*_owner(module, name), one.detach().clone()) for name, one in others.items()]
        self.called: nn.Module = torch.compile(module) if compiled else module  # type: ignore[assignment]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the module to oneself."""
        with self._in_use:
            self.is_as_made = False
            for owner, name, first in self._unsent:
                if (buffer := owner._buffers[name]) is not None:
                    buffer.copy_(first)
            try:
                yield
            finally:
                self._put_back()

    def gather(self) -> Tensor:
        """Return the gradient after a backward pass, wherever the module has put its parts meanwhile."""
        for parameter, _, gradient in self._trained:
            if parameter.grad is not gradient:
                gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
        self._put_back()
        return self.gradient

    def _put_back(self) -> None:
        """Make the vectors what the module reads and writes: in `forward` it may have moved on to other tensors."""
        for parameter, view, gradient in self._trained:
            if parameter.data_ptr() != view.data_ptr():
                parameter.data = view
            if parameter.grad is not gradient:
                parameter.grad = gradient
        for owner, name, view in self._held:
            buffer = owner._buffers[name]
            if buffer is not None and buffer is not view:
                view.copy_(buffer)
                owner._buffers[name] = view  # in which BatchNorm updates, and so in the vector

    def state(self) -> ServerState:
        """Return a copy of what travels, on the CPU."""
        vector = self.weights if self.start is None else self.weights - self.start
        buffers = None if self.buffers is None else self.buffers.to("cpu", copy=True)
        return ServerState(model=vector.to("cpu", copy=True), buffers=buffers)

    def load(self, vector: Tensor) -> None:
        """Take over what is trained; what is in the module's own weights already needs no copy."""
        if self.start is not None:
            torch.add(self.start, vector.to(self.start.device), out=self.weights)
        elif vector is not self.weights:
            self.weights.copy_(vector)

    def load_buffers(self, buffers: Tensor | None) -> None:
        """Take over the BatchNorm statistics, where some are given."""
        if buffers is not None and self.buffers is not None:
            self.buffers.copy_(buffers)

    def read_buffers(self) -> Tensor | None:
        """Return a copy of the BatchNorm statistics; None where the module has no such buffers."""
        return None if self.buffers is None else self.buffers.clone()

    def tensors(self, state: ServerState) -> dict[str, Tensor]:
        """Return a state by the names of the module's state_dict: all but what is frozen."""
        weights = self._weight_layout.unflatten(state.model if self.start is None else self.start.cpu() + state.model)
        buffers = {} if state.buffers is None else self._buffer_layout.unflatten(state.buffers)
        sent = {**weights, **buffers}
        return {**sent, **{name: sent[first].clone() for name, first in self._tied.items()}, **self._counters}

    def frozen_digest(self) -> str:
        """Return what tells one machine's frozen part from another's; nothing where all of the module travels."""
        sent = {*self._weight_layout.shapes, *self._tied, *self._buffer_layout.shapes, *self._counters}
        frozen = {name: one for name, one in self.module.state_dict().items() if name not in sent}
        if self.start is not None:
            frozen["the first weights"] = self.start
        if not frozen:
            return ""
        digest = hashlib.blake2b(digest_size=16)
        for name, tensor in sorted(frozen.items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()


def _aliases(named: Iterable[tuple[str, Tensor]], sent: Container[str]) -> dict[str, str]:
    """Return the further names of what is sent and has several, each with its first one."""
    first: dict[int, str] = {}
    found = {name: first.setdefault(id(tensor), name) for name, tensor in named}
    return {name: one for name, one in found.items() if name != one and one in sent}


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the submodule that has a buffer, and what it calls it."""
    path, _, own = name.rpartition(".")
    return module.get_submodule(path), own


def _refuse_untrainable(trained: dict[str, nn.Parameter]) -> None:
    if not trained:
        raise PublicError("the task's module has no parameter that requires a gradient: there is nothing to train")
    for name, parameter in trained.items():
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise PublicError(f"the task's module trains {name}, which is {kind}: make it float32, or freeze it")
