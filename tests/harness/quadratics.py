"""A task small enough to check by hand: f_i(w) = 1/2 (w - b_i)' A_i (w - b_i). Also a user's own plug-in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from common.learning.data import DataFolder
from common.learning.task import Problem, Task
from common.rounds.objective import FullGradient, Gradient, Objective
from common.rounds.state import ServerState


class Quadratic(Objective):
    def __init__(self, curvature: Tensor, centre: Tensor) -> None:
        self.curvature = curvature  # (N, d, d)
        self.centre = centre  # (N, d)

    def round(self, number: int, buffers: Tensor | None) -> AbstractContextManager[Gradient]:
        return nullcontext(FullGradient(self.gradient))

    def gradient(self, weights: Tensor) -> Tensor:
        distance = weights.reshape(self.centre.shape) - self.centre
        return torch.bmm(self.curvature, distance.unsqueeze(-1)).reshape(weights.shape)

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        distance = weights - self.centre.reshape(weights.shape)
        return (distance * self.gradient(weights)).sum(-1) / 2


class QuadraticProblem(Problem):
    data_name = "quadratics"
    metric: str = "test_closeness"
    batched: ClassVar[bool] = True

    def __init__(self, curvature: Tensor, centre: Tensor, start: Tensor) -> None:
        self.curvature = curvature
        self.centre = centre
        self.start = start
        self.clients = len(centre)

    def initial_state(self) -> ServerState:
        return ServerState(model=self.start)

    def objective(self, clients: Sequence[int]) -> Objective:
        return Quadratic(self.curvature[list(clients)], self.centre[list(clients)])

    def evaluate(self, state: ServerState) -> dict[str, float]:
        pull = torch.bmm(self.curvature, self.centre.unsqueeze(-1)).sum(0).squeeze(-1)
        optimum = torch.linalg.solve(self.curvature.sum(0), pull)
        return {"test_closeness": -float((state.model - optimum).norm())}


class ClientByClient(QuadraticProblem):
    """The same problem, run as networks are."""

    batched: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Quadratics(Task):
    size: int = 12

    def load(self, data: DataFolder, *, clients: int, seed: int, device: torch.device) -> QuadraticProblem:
        return random_problem(clients, self.size, seed)


def random_problem(clients: int, size: int, seed: int, dtype: torch.dtype = torch.float32) -> QuadraticProblem:
    """Clients whose curvature couples all coordinates, far apart, from a start that is neither zero nor sparse."""
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(clients, size, size)) / size**0.5
    curvature = 0.5 * np.eye(size) + 0.25 * mixing @ mixing.transpose(0, 2, 1)
    centre = generator.normal(size=(clients, size)) + np.linspace(2, -2, size)
    start = generator.normal(size=size)
    return QuadraticProblem(*(torch.tensor(array, dtype=dtype) for array in (curvature, centre, start)))
