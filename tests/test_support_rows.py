"""Gradients of least squares at sparse points, from rows of Gram matrices."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as some

from common.learning.objectives.least_squares import LeastSquares, ThinClient
from common.learning.objectives.support_rows import SupportRows

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


def test_dense_points_and_several_of_a_client_are_not_sparse() -> None:
    objective = LeastSquares([ThinClient.of(np.ones((2, 8)), np.ones(2))], 0.0, CPU)
    assert objective.is_sparse(torch.eye(8)[0])
    assert not objective.is_sparse(torch.ones(8))
    assert not objective.is_sparse(torch.eye(8)[:2])
