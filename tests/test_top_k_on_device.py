"""What a GPU does, shown without one: its path on CPU tensors, and on the `meta` device, which has no numbers."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bench.vectors import SIZE
from common.vectors.select_on_device import top_k_on_device
from common.vectors.sparsity import WarmTopK, top_k
from tests.harness.device_watch import META, watched

MOST_OPERATORS = 12
# Few distinct values, so that ties, zeros of both signs and subnormals are frequent.
VALUES = st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-40, 0.5, -0.5, 1.0, -1.0, 3.4e38]) | st.floats(-2, 2, width=32)
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=3, min_side=2, max_side=40), elements=VALUES)


def on_device(vector: torch.Tensor, kept: int) -> torch.Tensor:
    return top_k_on_device(vector, kept, torch.full_like(vector, math.nan))


def assert_same_set(rows: np.ndarray, kept: int) -> None:
    vector = torch.from_numpy(rows)
    expected = top_k(vector, kept / rows.shape[-1])
    assert on_device(vector, kept).numpy().tobytes() == expected.numpy().tobytes()
    assert on_device(vector.double(), kept).numpy().tobytes() == expected.double().numpy().tobytes()


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    rows = draw(ROWS)
    most = rows.shape[-1] - 1
    return rows, draw(st.sampled_from([1, most]) | st.integers(1, most))


@settings(max_examples=500, deadline=None)
@given(cases())
def test_the_set_is_that_of_the_cpu(case: tuple[np.ndarray, int]) -> None:
    assert_same_set(*case)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(cases())
def test_the_set_is_that_of_the_cpu_in_many_cases(case: tuple[np.ndarray, int]) -> None:
    assert_same_set(*case)


@pytest.mark.slow
@pytest.mark.parametrize("density", [1 / SIZE, 0.01, 0.1, 0.5, 1 - 1 / SIZE])
def test_the_set_is_that_of_the_cpu_for_a_large_network(density: float) -> None:
    generator = np.random.default_rng(3)
    values = generator.standard_normal(SIZE, dtype=np.float32)
    values[generator.integers(SIZE, size=SIZE // 3)] = 1.6449  # ties, right at the threshold of one density
    vector = torch.from_numpy(values)
    assert torch.equal(on_device(vector, round(density * SIZE)), top_k(vector, density))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_kept_for_others_to_see(value: float) -> None:
    vector = torch.tensor([1.0, value, 3.0, -2.0])
    assert on_device(vector, 2)[[0, 2, 3]].tolist() == [0.0, 3.0, 0.0]
    assert not on_device(vector, 2)[1].isfinite()


@pytest.mark.parametrize("shape", [(1000,), (3, 100)])
@pytest.mark.parametrize("path", [top_k, WarmTopK()])
def test_nothing_is_looked_at(path: Callable[..., torch.Tensor], shape: tuple[int, ...]) -> None:
    vector = torch.empty(shape, device=META)
    for density in (0.001, 0.1, 1.0):
        assert path(vector, density).shape == shape
        assert path(vector, density, torch.empty_like(vector)).device == META


def test_few_operators_are_launched_and_nothing_is_sent() -> None:
    vector, out = torch.empty(1000, device=META), torch.empty(1000, device=META)
    watch = watched(lambda: WarmTopK()(vector, 0.1, out))
    assert 0 < watch.operators.total() <= MOST_OPERATORS, watch.operators
    assert not watch.sent
