"""Gradients of least squares at sparse points, from rows of Gram matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from common.learning.objectives import least_squares
from common.learning.objectives.least_squares import LeastSquares, RidgeGradient, ThinClient
from common.learning.objectives.support_rows import Numbers, SupportRows
from common.learning.task import Problem
from server.simulation.simulation import Simulation
from tests.harness.small_data import write_blogfeedback

CPU = torch.device("cpu")


@given(some.integers(0, 2**32), some.integers(1, 4), some.integers(1, 9))
def test_products_follow_supports_that_come_and_go(seed: int, clients: int, size: int) -> None:
    random = np.random.default_rng(seed)
    gram = random.integers(-9, 10, (clients, size, size)).astype(np.float32)  # so that sums are exact in any order
    rows = SupportRows(gram)
    for _ in range(8):
        points = random.integers(-9, 10, (clients, size)) * (random.random((clients, size)) < random.random())
        expected = np.einsum("nd,nde->ne", points, gram)
        assert np.array_equal(rows.products(points.astype(np.float32)), expected)


def test_the_gradient_at_sparse_points_is_that_of_the_rows_of_data() -> None:
    random = np.random.default_rng(0)
    data = [(random.normal(size=(rows, 40)), random.normal(size=rows)) for rows in (7, 0, 90)]
    objective = LeastSquares([ThinClient.of(*one) for one in data], 0.3, CPU)
    points = random.normal(size=(3, 40)) * (random.random((3, 40)) < 0.1)
    weights = torch.from_numpy(points).float()
    assert objective.is_sparse(weights)
    with objective.round(1, None) as gradient:
        found = gradient(weights)
    expected = [a.T @ (a @ w - b) + 0.3 * w for (a, b), w in zip(data, points, strict=True)]
    assert np.allclose(found.numpy(), np.stack(expected), atol=1e-4)


def test_dense_points_and_several_of_a_client_and_a_client_alone_are_not_sparse() -> None:
    thin = ThinClient.of(np.ones((2, 8)), np.ones(2))
    objective = LeastSquares([thin, thin], 0.0, CPU)
    assert objective.is_sparse(torch.eye(8)[:2])
    assert not objective.is_sparse(torch.ones(2, 8))
    assert not objective.is_sparse(torch.eye(8)[:4])
    assert not LeastSquares([thin], 0.0, CPU).is_sparse(torch.eye(8)[0])


@pytest.mark.parametrize("name", ["sparse_proxskip", "sparse_proxskip_arena", "fedcomloc_local", "fediht"])
def test_a_run_has_the_iterates_of_the_factors_but_for_rounding(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_blogfeedback(tmp_path, rows_a_blog=40)
    settings = ["clients=4", "rounds=12", "schedule.period=6", f"algorithm.name={name}", "algorithm.density=0.05"]
    experiment = load_experiment("blogfeedback", [*settings, "algorithm.learning_rate=1e-5", "codec.precision=float32"])
    problem = experiment.load(DataFolder.choose(tmp_path), CPU)
    products, asked = SupportRows.products, list[int]()

    def noted(self: SupportRows, points: Numbers) -> Numbers:
        asked.append(len(points))
        return products(self, points)

    monkeypatch.setattr(SupportRows, "products", noted)
    by_rows = iterates(experiment, problem)
    count = len(asked)
    assert count > 30  # of 72 gradients: a few at first are at dense points
    monkeypatch.setattr(least_squares, "SPARSE", -1.0)
    by_factors = iterates(experiment, problem)
    assert len(asked) == count  # these were all by factors
    for one, other in zip(by_rows, by_factors, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


def iterates(experiment: Experiment, problem: Problem) -> list[torch.Tensor]:
    simulation = Simulation(experiment, problem, CPU)
    return [simulation.state.model for _ in simulation.rounds()]


@pytest.mark.slow
def test_on_real_blogs_gradients_are_as_near_to_float64_as_those_of_the_factors(
    real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients, not iterates: where entries are nearly equal, either rounding lets TopK take another of them."""
    experiment = load_experiment(
        "blogfeedback", ["rounds=4", "codec.precision=float32", "codec.encode_in_simulation=false"]
    )
    problem = experiment.load(DataFolder.choose(real_data), CPU)
    call, errors = RidgeGradient.__call__, list[tuple[float, float]]()

    def compared(self: RidgeGradient, weights: torch.Tensor) -> torch.Tensor:
        found = call(self, weights)
        if self._objective.is_sparse(weights) and len(errors) < 20:
            exact = in_float64(self._objective, weights)
            lengths = exact.norm(dim=-1).clamp_min(1.0)  # a client without rows has none
            of_rows, of_factors = (
                (one - exact).norm(dim=-1) / lengths for one in (found, self._objective.gradient(weights))
            )
            errors.append((float(of_rows.max()), float(of_factors.max())))
        return found

    monkeypatch.setattr(RidgeGradient, "__call__", compared)
    iterates(experiment, problem)
    assert len(errors) == 20
    of_rows, of_factors = map(max, zip(*errors, strict=True))
    assert 0 < of_rows < 2 * of_factors < 1e-4


def in_float64(objective: LeastSquares, weights: torch.Tensor) -> torch.Tensor:
    exact = objective._ridge * weights.double() - objective._moment.double()
    parts = [
        (part.double() @ factor.double().mT) @ factor.double()
        for part, factor in objective._with_factors(weights.unsqueeze(1))
    ]
    exact[objective._members] += torch.cat(parts).squeeze(1)
    return exact
