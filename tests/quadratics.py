"""A task small enough to check by hand: f_i(w) = 1/2 sum_j a_ij (w_j - b_ij)^2. Also a user's own plug-in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from common.data import DataFolder
from common.task import Objective, Problem, Task
from common.types import ServerState


class Quadratic(Objective):
    def __init__(self, curvature: Tensor, centre: Tensor) -> None:
        self.curvature = curvature
        self.centre = centre

    def start_round(self, round_number: int, buffers: Tensor | None) -> Callable[[Tensor], Tensor]:
        return lambda weights: (self.curvature * (weights.reshape(self.centre.shape) - self.centre)).reshape(
            weights.shape
        )

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        distance = weights.reshape(self.centre.shape) - self.centre
        return (self.curvature * distance.square() / 2).sum(-1).reshape(weights.shape[:-1])


class QuadraticProblem(Problem):
    data_name = "quadratics"
    metric: ClassVar[str] = "test_closeness"
    batched: ClassVar[bool] = True

    def __init__(self, curvature: Tensor, centre: Tensor) -> None:
        self.curvature = curvature
        self.centre = centre
        self.clients = len(centre)

    def initial_state(self) -> ServerState:
        return ServerState(model=torch.zeros_like(self.centre[0]))

    def objective(self, clients: Sequence[int]) -> Objective:
        return Quadratic(self.curvature[list(clients)], self.centre[list(clients)])

    def evaluate(self, state: ServerState) -> dict[str, float]:
        optimum = (self.curvature * self.centre).sum(0) / self.curvature.sum(0)
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
    generator = np.random.default_rng(seed)
    curvature = generator.uniform(0.5, 1.5, (clients, size))
    centre = generator.normal(size=(clients, size)) + np.linspace(2, -2, size)
    return QuadraticProblem(torch.tensor(curvature, dtype=dtype), torch.tensor(centre, dtype=dtype))
