"""A neural network: mini-batch gradients of a torch module, seen as a function of its flat weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from common.learning.batches import Batch, Batches
from common.learning.network_task import NetworkTask
from common.learning.own_code import OwnCodeError, own_code
from common.learning.trained_part import TrainedPart
from common.randomness import global_stream, torch_stream
from common.rounds.objective import Gradient, Objective

SURELY = 0.99  # of what a gradient may measure: it is not too long, however its squares were added up


class NetworkObjective(Objective):
    """One client's mean loss under a network, as its task has it, with weight decay and gradient clipping."""

    def __init__(self, task: NetworkTask, network: TrainedPart, batches: Batches, *, seed: int, client: int) -> None:
        self.task = task
        self.network = network
        self.batches = batches
        self.device = network.weights.device
        self._seed = seed
        self._client = client

    @contextmanager
    def round(self, number: int, buffers: Tensor | None) -> Iterator[Gradient]:
        """Have the network to oneself for a round, whose gradient takes the next batches at each call."""
        generator = torch_stream(self._seed, "batches", self._client, number, device=self.device)
        noise = torch_stream(self._seed, "noise", self._client, number)
        with self.network.turn(), global_stream(self.device):
            torch.manual_seed(noise.initial_seed())  # what dropout draws from
            self.network.load_buffers(buffers)
            self.network.module.train()
            yield _BatchGradient(self, generator)

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        """Return the loss on a fixed random part of the client's examples, as the network is at inference."""
        total, count = torch.zeros((), device=self.device), 0
        with self.network.turn(), torch.no_grad():
            self.network.load(weights)
            self.network.load_buffers(buffers)
            self.network.module.eval()
            chosen = torch_stream(self._seed, "loss samples", self._client, device=self.device)
            for batch in self.batches.some(self.task.loss_samples, chosen):
                examples = examples_of(self.task, batch)
                total += self.batch_loss(batch, None) * examples
                count += examples
        return total / count + self.task.weight_decay / 2 * weights.square().sum()

    def batch_loss(self, batch: Batch, generator: torch.Generator | None) -> Tensor:
        """Return the loss on a batch; with a generator, as in training."""
        changed, outputs = outputs_of(self.task, self.network, batch, generator)
        with own_code(self.task, "loss"), _precision(self.task, self.device):
            loss = self.task.loss(outputs, changed)
        if not isinstance(loss, Tensor) or loss.ndim:
            found = f"{list(loss.shape)} numbers" if isinstance(loss, Tensor) else type(loss).__name__
            raise OwnCodeError(self.task, "loss", f"it must return one number as a tensor, not {found}")
        return loss


class _BatchGradient(Gradient):
    """The gradient of one round: of the next batches at each call."""

    def __init__(self, objective: NetworkObjective, generator: torch.Generator) -> None:
        self._objective = objective
        self._network = objective.network
        self._generator = generator
        self._batches = objective.batches.endless(generator)
        self.point = None if self._network.start is not None else self._network.weights

    def __call__(self, weights: Tensor) -> Tensor:
        """Return the gradient on the next batches, with the network's buffers as they are."""
        return self._completed(self._of_loss(weights), weights)

    def undecayed(self, weights: Tensor, norm_at_most: float) -> tuple[Tensor, float]:
        """Leave the weight decay to the caller where the gradient is short enough with it, however long it is."""
        gradient, task = self._of_loss(weights), self._objective.task
        if is_short(gradient, task.gradient_clip_norm, more=task.weight_decay * norm_at_most):
            return gradient, task.weight_decay
        return self._completed(gradient, weights), 0.0

    def _of_loss(self, weights: Tensor) -> Tensor:
        task, steps = self._objective.task, self._objective.batches.per_step
        self._network.load(weights)
        self._network.gradient.zero_()
        for _ in range(steps):
            loss = self._objective.batch_loss(next(self._batches), self._generator)
            with own_code(task, "loss"):
                (loss / steps if steps > 1 else loss).backward()  # type: ignore[no-untyped-call]
        return self._network.gather()

    def _completed(self, gradient: Tensor, weights: Tensor) -> Tensor:
        task = self._objective.task
        if task.weight_decay:
            gradient.add_(weights, alpha=task.weight_decay)
        return clipped(gradient, task.gradient_clip_norm)

    def buffers(self) -> Tensor | None:
        """Return the BatchNorm statistics of the network."""
        return self._network.read_buffers()


def clipped(gradient: Tensor, longest: float) -> Tensor:
    """Shorten a gradient that is too long."""
    if gradient.device.type != "cpu":
        return clipped_on_device(gradient, longest)
    if is_short(gradient, longest):
        return gradient
    norm = torch.linalg.vector_norm(gradient)
    return gradient if norm <= longest else gradient.mul_(torch.tensor(longest) / norm)


def is_short(gradient: Tensor, longest: float, more: float = 0.0) -> bool:
    """Say whether a gradient and something so long are surely not too long: sooner than a norm would, not as exact."""
    room = SURELY * longest - more
    return room > 0 and float(gradient.dot(gradient)) < room**2


def clipped_on_device(gradient: Tensor, longest: float) -> Tensor:
    """Do the same in one operator, and without a look at the norm."""
    gradient[None].renorm_(p=2, dim=0, maxnorm=longest)
    return gradient


def examples_of(task: NetworkTask, batch: Batch) -> int:
    """Return how many examples a batch has."""
    with own_code(task, "examples_in"):
        return task.examples_in(batch)


def outputs_of(
    task: NetworkTask, network: TrainedPart, batch: Batch, generator: torch.Generator | None
) -> tuple[Batch, Any]:
    """Return a batch as the task changes it, and what the network makes of it."""
    with own_code(task, "transform"):
        changed = task.transform(batch, generator)
    with own_code(task, "forward"), _precision(task, network.weights.device):
        return changed, task.forward(network.called, changed)


def _precision(task: NetworkTask, device: torch.device) -> AbstractContextManager[object]:
    return nullcontext() if task.autocast == "none" else torch.autocast(device.type, getattr(torch, task.autocast))
