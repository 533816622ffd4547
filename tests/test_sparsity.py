import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common import sparsity
from common.sparsity import WarmTopK, density_of, kept_count, soft_threshold, top_k
from tests.textbook import top_k as plain_top_k

# Few distinct values, so that ties, zeros of both signs and subnormals are frequent.
VALUES = st.sampled_from([0.0, -0.0, 1e-40, -1e-40, 0.5, -0.5, 1.0, -1.0, 2.0, 3.0e38, math.inf, -math.inf])
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9), elements=VALUES)
DENSITIES = st.floats(min_value=1e-3, max_value=1.0)


def test_keeps_the_largest_magnitudes() -> None:
    assert top_k(torch.tensor([1.0, -4.0, 2.0, -3.0]), 0.5).tolist() == [0.0, -4.0, 0.0, -3.0]


def test_of_equals_the_lowest_index_stays() -> None:
    assert top_k(torch.tensor([1.0, -1.0, 1.0, 1.0]), 0.5).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_rows_are_pruned_one_by_one() -> None:
    batch = torch.tensor([[5.0, 1.0, 0.0], [2.0, 2.0, 9.0]])
    assert top_k(batch, 1 / 3).tolist() == [[5.0, 0.0, 0.0], [0.0, 0.0, 9.0]]


def test_an_expanded_view_is_pruned_like_its_copy() -> None:
    vector = torch.tensor([3.0, 1.0, 2.0])
    assert top_k(vector.expand(4, -1), 2 / 3).tolist() == [[3.0, 0.0, 2.0]] * 4


@pytest.mark.parametrize(("density", "size", "kept"), [(0.1, 281, 28), (1e-9, 10, 1), (1.0, 7, 7), (0.5, 3, 2)])
def test_kept_count(density: float, size: int, kept: int) -> None:
    assert kept_count(density, size) == kept


@pytest.mark.parametrize("density", [0.0, -0.1, 1.1, math.nan])
def test_density_out_of_range_is_refused(density: float) -> None:
    with pytest.raises(ValueError, match="density"):
        top_k(torch.ones(3), density)


@given(ROWS, DENSITIES)
def test_top_k_is_the_plain_one_on_every_path(rows: np.ndarray, density: float) -> None:
    kept = kept_count(density, rows.shape[-1])
    expected = np.apply_along_axis(lambda row: plain_top_k(row, kept), -1, rows)
    ours = top_k(torch.from_numpy(rows), density)
    assert np.array_equal(ours.numpy(), expected)
    if kept < rows.shape[-1]:
        device = sparsity._top_k_on_device(torch.from_numpy(rows), kept)
        assert torch.equal(device, ours)


@given(ROWS, DENSITIES)
def test_top_k_leaves_its_input_alone_and_is_idempotent(rows: np.ndarray, density: float) -> None:
    vector = torch.from_numpy(rows.copy())
    once = top_k(vector, density)
    assert np.array_equal(vector.numpy(), rows)
    assert torch.equal(top_k(once, density), once)
    assert int((density_of(once) * rows.shape[-1]).round().max()) <= kept_count(density, rows.shape[-1])


@pytest.mark.parametrize("path", [lambda v: top_k(v, 0.5), lambda v: sparsity._top_k_on_device(v, 2)])
def test_not_a_number_is_never_pruned_away(path: Callable[[torch.Tensor], torch.Tensor]) -> None:
    pruned = path(torch.tensor([1.0, math.nan, math.inf, 3.0]))
    assert pruned[0] == 0
    assert pruned[1].isnan()
    assert pruned[2] == math.inf
    assert pruned[3] == 0


def test_soft_threshold_shrinks_towards_zero() -> None:
    assert soft_threshold(torch.tensor([3.0, -3.0, 0.5, -0.5, 1.0]), 1.0).tolist() == [2.0, -2.0, 0.0, 0.0, 0.0]


def test_density_counts_nonzeros_of_every_row() -> None:
    assert density_of(torch.tensor([[0.0, 2.0], [0.0, 0.0]])).tolist() == [0.5, 0.0]


@given(steps=st.lists(st.integers(0, 3), min_size=1, max_size=8), density=st.sampled_from([0.2, 0.5, 0.9]))
def test_warm_top_k_is_top_k_however_fast_the_rows_change(steps: list[int], density: float) -> None:
    """Rows of small integers tie often; a change of 0 to 3 entries leaves some bounds good and spoils others."""
    generator = np.random.default_rng(len(steps))
    rows = torch.from_numpy(generator.integers(-3, 4, (6, 10)).astype(np.float32))
    warm = WarmTopK()
    for changes in steps:
        rows = rows.clone()
        rows[generator.integers(6, size=changes), generator.integers(10, size=changes)] += 0.25
        assert torch.equal(warm(rows, density), top_k(rows, density))


def test_warm_top_k_keeps_apart_the_densities_it_is_asked_for() -> None:
    warm = WarmTopK()
    rows = torch.tensor([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    for density in (0.25, 0.5, 0.25, 1.0):
        assert torch.equal(warm(rows, density), top_k(rows, density))
