"""A neural network: mini-batch gradients of a torch module, seen as a function of its flat weights."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn

from common.randomness import torch_stream
from common.rounds.objective import Objective
from common.rounds.state import ServerState
from common.vectors.flatten import Layout

Augment = Callable[[Tensor, torch.Generator], Tensor]


class FlatModule:
    """A module whose parameters and gradients are views of two flat vectors: one copy a step, not one a tensor.

    Objectives that share it load all of it in turns, one at a time: clients of one process are threads of it.
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
        self._network = network
        self._buffers: Tensor | None = None
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

    def start_round(self, round_number: int, buffers: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return a function that takes the next batch of this round at each call."""
        self._buffers = buffers
        generator = torch_stream(self._seed, "batches", self._client, round_number)
        order = torch.empty(0, dtype=torch.int64)

        def gradient(weights: Tensor) -> Tensor:
            nonlocal order
            if len(order) < self._batch_size:  # the next epoch
                order = torch.randperm(len(self._labels), generator=generator)
            batch, order = order[: self._batch_size], order[self._batch_size :]
            return self._batch_gradient(weights, batch, generator)

        return gradient

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        """Return the loss on a fixed random part of the client's images, as the network is at inference."""
        network = self._network
        with network.in_use, torch.no_grad():
            network.load(weights, buffers)
            network.module.eval()
            scores = network.module(self._normalize(self._inputs[self._loss_samples]))
            fit = nn.functional.cross_entropy(scores, self._labels[self._loss_samples])
        return fit + self._weight_decay / 2 * weights.square().sum()

    def buffers(self) -> Tensor | None:
        """Return the BatchNorm statistics as the round left them."""
        return self._buffers

    def _batch_gradient(self, weights: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        network = self._network
        images = self._normalize(self._augment(self._inputs[batch], generator))
        with network.in_use:
            network.load(weights, self._buffers)  # all of it: other clients may have used the network in between
            network.gradient.zero_()
            network.module.train()
            nn.functional.cross_entropy(network.module(images), self._labels[batch]).backward()  # type: ignore[no-untyped-call]
            self._buffers = network.read_buffers()
            gradient = torch.add(network.gradient, weights, alpha=self._weight_decay)
        norm = float(gradient.norm())
        return gradient * (self._gradient_clip_norm / norm) if norm > self._gradient_clip_norm else gradient
