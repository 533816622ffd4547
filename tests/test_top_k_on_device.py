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
from common.vectors.select_on_device import OnDevice
from common.vectors.sparsity import WarmTopK, top_k
from tests.harness.device_watch import META, watched

MOST_OPERATORS, MOST_FOR_TWO = 12, 12
# Few distinct values, so that ties, zeros of both signs and subnormals are frequent.
VALUES = st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-40, 0.5, -0.5, 1.0, -1.0, 3.4e38]) | st.floats(-2, 2, width=32)
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=3, min_side=2, max_side=40), elements=VALUES)


def on_device(vector: torch.Tensor, kept: int) -> torch.Tensor:
    return OnDevice().top_k(vector, kept, torch.full_like(vector, math.nan))


def assert_same_set(rows: np.ndarray, kept: int) -> None:
    vector = torch.from_numpy(rows)
    expected = top_k(vector, kept / rows.shape[-1])
    assert on_device(vector, kept).numpy().tobytes() == expected.numpy().tobytes()
    assert on_device(vector.double(), kept).numpy().tobytes() == expected.double().numpy().tobytes()


def assert_same_sets(rows: np.ndarray, fewer: int, more: int) -> None:
    """Prune to few, as a round begins; then to more, and that to few again, as `hybrid` does in every step."""
    vector, size = torch.from_numpy(rows), rows.shape[-1]
    warm = OnDevice()
    warm.top_k(vector.clone(), fewer, torch.full_like(vector, math.nan))
    for _ in range(2):
        result = warm.top_k(vector, more, torch.full_like(vector, math.nan))
        assert result.numpy().tobytes() == top_k(vector, more / size).numpy().tobytes()
        of_result = warm.top_k(result, fewer, torch.full_like(vector, math.nan))
        assert of_result.numpy().tobytes() == top_k(vector, fewer / size).numpy().tobytes()
        vector = vector.flip(-1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    rows = draw(ROWS)
    most = rows.shape[-1] - 1
    return rows, draw(st.sampled_from([1, most]) | st.integers(1, most))


@settings(max_examples=500, deadline=None)
@given(cases())
def test_the_set_is_that_of_the_cpu(case: tuple[np.ndarray, int]) -> None:
    assert_same_set(*case)


@st.composite
def cases_of_two(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    rows, more = draw(cases())
    return rows, draw(st.integers(1, more)), more


@settings(max_examples=300, deadline=None)
@given(cases_of_two())
def test_both_sets_are_those_of_the_cpu(case: tuple[np.ndarray, int, int]) -> None:
    assert_same_sets(*case)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(cases_of_two())
def test_both_sets_are_those_of_the_cpu_in_many_cases(case: tuple[np.ndarray, int, int]) -> None:
    assert_same_sets(*case)


def test_a_result_that_was_changed_is_pruned_as_it_is() -> None:
    vector = torch.tensor([4.0, 3.0, 2.0, 1.0])
    warm = OnDevice()
    warm.top_k(vector, 1, torch.empty(4))
    result = warm.top_k(vector, 2, torch.empty(4))
    result[1] = 9.0
    assert warm.top_k(result, 1, torch.empty(4)).tolist() == [0.0, 9.0, 0.0, 0.0]


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
    if density < 0.5:
        assert_same_sets(values, round(density * SIZE), SIZE // 2)


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


def test_hardly_more_operators_are_launched_for_two_sets() -> None:
    vector, out, again = (torch.empty(1000, device=META) for _ in range(3))
    warm = WarmTopK()

    def twice() -> None:
        warm(warm(vector, 0.3, out), 0.1, again)

    warm(vector, 0.1, again)
    twice()
    watch = watched(twice)
    assert 0 < watch.operators.total() <= MOST_FOR_TWO, watch.operators
    assert not watch.sent
