import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.errors import DivergedError
from common.vectors import select_band, select_long
from common.vectors.sparsity import WarmTopK, density_of, kept_count, soft_threshold, top_k
from tests.harness.textbook import top_k as plain_top_k

# Few distinct values, so that ties, zeros of both signs and subnormals are frequent.
VALUES = st.sampled_from([0.0, -0.0, 1e-40, -1e-40, 0.5, -0.5, 1.0, -1.0, 2.0, 3.4e38, -3.4e38])
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9), elements=VALUES)
DENSITIES = st.floats(min_value=1e-3, max_value=1.0)
TopK = Callable[..., torch.Tensor]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two vectors are the same, in the sign of their zeros too."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


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
def test_top_k_is_the_plain_one(rows: np.ndarray, density: float) -> None:
    kept = kept_count(density, rows.shape[-1])
    expected = np.apply_along_axis(lambda row: plain_top_k(row, kept), -1, rows)
    assert np.array_equal(top_k(torch.from_numpy(rows), density).numpy(), expected)


@given(ROWS, DENSITIES, st.sampled_from([top_k, WarmTopK()]))
def test_top_k_writes_where_it_is_told_to(rows: np.ndarray, density: float, path: TopK) -> None:
    vector = torch.from_numpy(rows)
    out = torch.full_like(vector, math.nan)
    before = out._version
    assert path(vector, density, out) is out
    assert out._version > before, "torch knows that it was written to"
    assert same_bits(out, top_k(vector, density))


def test_top_k_does_not_write_to_what_it_reads() -> None:
    vector = torch.ones(3)
    with pytest.raises(ValueError, match="another `out`"):
        top_k(vector, 0.5, vector)


@given(ROWS, DENSITIES)
def test_top_k_leaves_its_input_alone_and_is_idempotent(rows: np.ndarray, density: float) -> None:
    vector = torch.from_numpy(rows.copy())
    once = top_k(vector, density)
    assert np.array_equal(vector.numpy(), rows)
    assert torch.equal(top_k(once, density), once)
    assert int((density_of(once) * rows.shape[-1]).round().max()) <= kept_count(density, rows.shape[-1])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    vector = torch.linspace(-2.0, 1.0, 100)
    warm = WarmTopK()
    warm(vector, 0.25)
    vector[77] = value
    for path in (top_k, warm):
        with pytest.raises(DivergedError, match="learning_rate"):
            path(vector, 0.25)


@pytest.fixture(params=["numpy", "numba"])
def everything_is_long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small vectors take the path of long ones, through many blocks and with a poor sample."""
    monkeypatch.setattr(select_long, "LONG_FROM", 2)
    monkeypatch.setattr(select_long, "SAMPLE_SIZE", 5)
    monkeypatch.setattr(select_long, "LEAST_STRIDE", 1)
    monkeypatch.setattr(select_long, "DEVIATIONS", 0.1)
    monkeypatch.setattr(select_band, "STRETCH", 7)
    passes = {"numpy": select_band.band_by_numpy}
    if request.param == "numba":
        pytest.importorskip("numba")
        from common.vectors import select_fast

        passes["numba"] = select_fast.band_by_numba
    monkeypatch.setattr(select_long, "band_pass", lambda size: passes[request.param])


@pytest.mark.usefixtures("everything_is_long")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_both_passes(value: float) -> None:
    for density in (0.01, 0.25):  # numpy has a way of its own for few
        vector = torch.linspace(-2.0, 1.0, 100)
        vector[77] = value
        with pytest.raises(DivergedError, match="learning_rate"):
            top_k(vector, density)


LONG = hnp.arrays(np.float32, st.integers(5, 60), elements=VALUES | st.floats(-2, 2, width=32))


@pytest.mark.usefixtures("everything_is_long")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(vector=LONG, density=st.floats(1e-3, 0.5), few=st.sampled_from([0.0, 1.0]))
def test_a_long_vector_is_pruned_like_a_short_one(vector: np.ndarray, density: float, few: float) -> None:
    kept = kept_count(density, vector.size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select_long, "FEW", few)  # both ways to take out what is kept
        ours = top_k(torch.from_numpy(vector), density)
    assert np.array_equal(ours.numpy(), plain_top_k(vector, kept))
    assert entries_of(ours) <= kept


def entries_of(vector: torch.Tensor) -> int:
    """Return how many entries the codec would send: -0.0 is one."""
    return int(torch.count_nonzero(vector.view(torch.int32)))


@pytest.mark.usefixtures("everything_is_long")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=LONG, steps=st.lists(st.floats(0.5, 2.0), max_size=6), density=st.sampled_from([0.05, 0.2, 0.5]))
def test_a_long_vector_is_pruned_from_the_last_threshold(start: np.ndarray, steps: list[float], density: float) -> None:
    warm = WarmTopK()
    vector = start
    for factor in [1.0, *steps]:  # thresholds that grow and fall, sometimes beyond the bounds
        vector = np.clip(np.roll(vector, 1), -1.7e38, 1.7e38) * np.float32(factor)
        expected = plain_top_k(vector, kept_count(density, vector.size))
        assert np.array_equal(warm(torch.from_numpy(vector), density).numpy(), expected)


@pytest.mark.parametrize("density", [0.01, 0.05, 0.3])
def test_a_really_long_vector(density: float) -> None:
    generator = np.random.default_rng(3)
    vector = (generator.standard_normal(300_007) * generator.gamma(1, 1, 300_007)).astype(np.float32)
    vector[generator.integers(vector.size, size=90_000)] = 0.5  # ties, right at the threshold for one density
    expected = plain_top_k(vector.astype(np.float64), kept_count(density, vector.size))
    ours = top_k(torch.from_numpy(vector), density)
    assert np.array_equal(ours.numpy(), expected)
    assert entries_of(ours) == kept_count(density, vector.size)
    warm = WarmTopK()
    for _ in range(3):
        assert warm(torch.from_numpy(vector), density).numpy().tobytes() == ours.numpy().tobytes()


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


def test_warm_top_k_of_its_own_last_result() -> None:
    """Pruned twice, as hybrid does; a result that was changed since counts as a new vector."""
    warm = WarmTopK()
    rows = torch.tensor([[4.0, -3.0, 2.0, 1.0, 0.5], [1.0, 2.0, 3.0, -4.0, 2.0]])
    for _ in range(2):
        once = warm(rows, 0.6)
        assert torch.equal(warm(once, 0.2), top_k(rows, 0.2))
        once = warm(rows, 0.6)
        assert torch.equal(warm(once, 1.0), once)
        once = warm(rows, 0.6).mul_(torch.tensor([0.1, 1.0, 1.0, 1.0, 1.0]))
        assert torch.equal(warm(once, 0.2), top_k(once, 0.2))
        assert torch.equal(warm(warm(rows, 0.4), 0.6), top_k(rows, 0.4))
