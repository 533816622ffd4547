"""A neural network: mini-batch gradients of a torch module, seen as a function of its flat weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from common.randomness import torch_stream
from common.rounds.objective import Gradient, Objective
from common.rounds.state import ServerState
from common.vectors.flatten import Layout

Augment = Callable[[Tensor, torch.Generator], Tensor]


class FlatModule:
    """A module whose parameters and gradients are views of two flat vectors: one copy a step, not one a tensor.

    Objectives that share it have it in turns, a whole round each: clients of one process are threads of it.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.in_use = threading.Lock()
        self.module = module.to(device)
        self._parameter_layout = Layout.of_parameters(module)
        self._buffer_layout = Layout.of_buffers(module)
        self._counters = {k: v.cpu().clone() for k, v in module.state_dict().items() if not v.is_floating_point()}
        self.weights = self._parameter_layout.flatten({k: v.detach() for k, v in module.named_parameters()})
        self.gradient = torch.zeros_like(self.weights)
        views = self._parameter_layout.unflatten(self.weights)
        gradient_views = self._parameter_layout.unflatten(self.gradient)
        for name, parameter in module.named_parameters():
            parameter.data = views[name]
            parameter.grad = gradient_views[name]

    def state(self) -> ServerState:
        """Return a copy of weights and BatchNorm statistics, on the CPU."""
        buffers = self.read_buffers()
        return ServerState(
            model=self.weights.to("cpu", copy=True), buffers=None if buffers is None else buffers.to("cpu")
        )

    def tensors(self, state: ServerState) -> dict[str, Tensor]:
        """Return a state as the module's state_dict; what is never sent, BatchNorm's step counters, as at first."""
        buffers = {} if state.buffers is None else self._buffer_layout.unflatten(state.buffers)
        return {**self._parameter_layout.unflatten(state.model), **buffers, **self._counters}

    def load(self, weights: Tensor, buffers: Tensor | None) -> None:
        """Take over weights, and BatchNorm statistics where some are given."""
        self.weights.copy_(weights)
        if buffers is not None:
            self.write_buffers(buffers)

    def read_buffers(self) -> Tensor | None:
        """Return a copy of the BatchNorm statistics; None where the module has no such buffers."""
        if not self._buffer_layout.size:
            return None
        return self._buffer_layout.flatten(dict(self.module.named_buffers())).clone()

    def write_buffers(self, vector: Tensor) -> None:
        """Set the BatchNorm statistics."""
        buffers = dict(self.module.named_buffers())
        for name, value in self._buffer_layout.unflatten(vector).items():
            buffers[name].copy_(value)


class NetworkObjective(Objective):
    """The cross-entropy of one client's images under a network, with weight decay and gradient clipping."""

    def __init__(
        self,
        network: FlatModule,
        inputs: Tensor,
        labels: Tensor,
        *,
        batch_size: int,
        weight_decay: float,
        gradient_clip_norm: float,
        augment: Augment,
        normalize: Callable[[Tensor], Tensor],
        loss_samples: int,
        seed: int,
        client: int,
    ) -> None:
        self.network = network
        self._inputs = inputs
        self._labels = labels
        self._batch_size = min(batch_size, len(labels))
        self._weight_decay = weight_decay
        self._gradient_clip_norm = gradient_clip_norm
        self._augment = augment
        self._normalize = normalize
        self._seed = seed
        self._client = client
        order = torch.randperm(len(labels), generator=torch_stream(seed, "loss samples", client))
        self._loss_samples = order[:loss_samples]

    @contextmanager
    def round(self, number: int, buffers: Tensor | None) -> Iterator[Gradient]:
        """Have the network to oneself for a round, whose gradient takes the next batch at each call."""
        with self.network.in_use:
            if buffers is not None:
                self.network.write_buffers(buffers)
            self.network.module.train()
            yield _BatchGradient(self, torch_stream(self._seed, "batches", self._client, number))

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        """Return the loss on a fixed random part of the client's images, as the network is at inference."""
        network = self.network
        with network.in_use, torch.no_grad():
            network.load(weights, buffers)
            network.module.eval()
            scores = network.module(self._normalize(self._inputs[self._loss_samples]))
            fit = nn.functional.cross_entropy(scores, self._labels[self._loss_samples])
        return fit + self._weight_decay / 2 * weights.square().sum()

    def gradient(self, weights: Tensor, generator: torch.Generator, batch: Tensor) -> Tensor:
        """Return the gradient on some of the images, with the network's buffers as they are."""
        network = self.network
        images = self._normalize(self._augment(self._inputs[batch], generator))
        if weights is not network.weights:
            network.weights.copy_(weights)
        network.gradient.zero_()
        nn.functional.cross_entropy(network.module(images), self._labels[batch]).backward()  # type: ignore[no-untyped-call]
        gradient = network.gradient.add_(network.weights, alpha=self._weight_decay)
        norm = float(gradient.norm())
        return gradient.mul_(self._gradient_clip_norm / norm) if norm > self._gradient_clip_norm else gradient

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Deal the images out in batches, epoch after epoch; what is left of one is not used."""
        while True:
            order = torch.randperm(len(self._labels), generator=generator)
            for first in range(0, len(order) - self._batch_size + 1, self._batch_size):
                yield order[first : first + self._batch_size]


class _BatchGradient(Gradient):
    """The gradient of one round: of the next batch at each call."""

    def __init__(self, objective: NetworkObjective, generator: torch.Generator) -> None:
        self.point = objective.network.weights
        self._objective = objective
        self._generator = generator
        self._batches = objective.batches(generator)

    def __call__(self, weights: Tensor) -> Tensor:
        """Return the gradient on the next batch."""
        return self._objective.gradient(weights, self._generator, next(self._batches))

    def buffers(self) -> Tensor | None:
        """Return the BatchNorm statistics of the network."""
        return self._objective.network.read_buffers()
