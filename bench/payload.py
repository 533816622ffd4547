"""A task that costs nothing to compute, so that a round is all network: a dense model of any size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from common.learning.data import DataFolder
from common.learning.task import Problem, Task
from common.randomness import torch_stream
from common.rounds.objective import FullGradient, Gradient, Objective
from common.rounds.state import ServerState

TASK = "bench.payload:Payload"  # as payload.yaml has it, and clients must allow it


class NoLoss(Objective):
    """A loss without any slope."""

    def round(self, number: int, buffers: Tensor | None) -> AbstractContextManager[Gradient]:
        """Begin a round whose gradient is zero."""
        return nullcontext(FullGradient(torch.zeros_like))

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        """Return zero."""
        return torch.zeros(weights.shape[:-1])


class PayloadProblem(Problem):
    """Clients who have nothing to learn."""

    data_name = "payload"
    metric: str = "test_nothing"
    batched: ClassVar[bool] = False

    def __init__(self, clients: int, size: int) -> None:
        self.clients = clients
        self._size = size

    def initial_state(self) -> ServerState:
        """Return random numbers: nothing that a codec could make shorter."""
        return ServerState(model=torch.randn(self._size, generator=torch_stream(0, "payload")))

    def objective(self, clients: Sequence[int]) -> Objective:
        """Return the loss of any client."""
        return NoLoss()

    def evaluate(self, state: ServerState) -> dict[str, float]:
        """Return a score."""
        return {self.metric: 0.0}


@dataclass(frozen=True, kw_only=True)
class Payload(Task):
    """The section `task` of a benchmark."""

    size: int = 1000

    def load(self, data: DataFolder, *, clients: int, seed: int, device: torch.device) -> PayloadProblem:
        """Make the problem."""
        return PayloadProblem(clients, self.size)
