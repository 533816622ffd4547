"""The extra `fast`: the same bits as without it, whatever runs beside it and wherever its machine code may lie."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.vectors import select_long
from common.vectors.descent import descend
from common.vectors.select_band import GREATEST_MAGNITUDE, band_by_numpy
from common.vectors.sparsity import WarmTopK, top_k

pytest.importorskip("numba")
from common.vectors import machine_code, select_fast
from common.vectors.descent_fast import descend_by_numba

VALUES = st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-40, 0.5, -0.5, 1.0, -1.0, 3.4e38]) | st.floats(-2, 2, width=32)
VECTORS = hnp.arrays(np.float32, st.integers(1, 400), elements=VALUES, fill=VALUES)
BOUNDS = st.tuples(*[st.sampled_from([1e-45, 1e-40, 0.5, 1.0, GREATEST_MAGNITUDE]) | st.floats(1e-45, 2)] * 2)
USE_IT = """
import numpy
from common.vectors.select_fast import band_by_numba, scan
vector = numpy.arange(9, dtype=numpy.float32)
assert band_by_numba(vector, 3.0, 5.0, numpy.empty_like(vector)).places.tolist() == [3, 4, 5]
print(sum(scan.stats.cache_hits.values()))
"""


@pytest.fixture(autouse=True)
def used_for_all_that_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be used for vectors that are long, but not so long that it is worth its memory."""
    monkeypatch.setattr(select_long, "FAST_FROM", select_long.LONG_FROM)
    assert select_long.band_pass(select_long.LONG_FROM) is select_fast.band_by_numba


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let small vectors be shared among threads."""
    monkeypatch.setattr(machine_code, "LEAST_PART", 5)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def assert_same_band(vector: np.ndarray, bounds: tuple[float, float]) -> None:
    low, high = min(bounds), max(bounds)
    our_rest, numpys_rest = np.full_like(vector, np.nan), np.full_like(vector, np.nan)
    ours, numpys = select_fast.band_by_numba(vector, low, high, our_rest), band_by_numpy(vector, low, high, numpys_rest)
    if high < GREATEST_MAGNITUDE:  # else numpy counts nothing as above, and there is nothing
        assert ours.above == numpys.above
    assert ours.places.tolist() == numpys.places.tolist()
    assert ours.values.tobytes() == numpys.values.tobytes()
    assert our_rest.tobytes() == numpys_rest.tobytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VECTORS, BOUNDS)
def test_a_band_is_that_of_numpy(vector: np.ndarray, bounds: tuple[float, float]) -> None:
    assert_same_band(vector, bounds)


@pytest.mark.usefixtures("three_threads")
def test_a_band_is_that_of_numpy_with_threads() -> None:
    generator = np.random.default_rng(0)
    for size in (1, 7, 15, 1000, 40_001):
        vector = generator.integers(-9, 10, size).astype(np.float32)
        for bounds in ((9.0, 9.0), (8.0, 9.0), (1.0, 9.0)):  # one that fits into its room, and such that do not
            assert_same_band(vector, bounds)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("size", [1, 7, 40_001])
def test_a_step_is_that_of_torch(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    weights, gradient, correction = (torch.randn(size, generator=generator) for _ in range(3))
    ours, version = weights.clone(), weights._version
    assert descend_by_numba(ours, gradient.clone(), correction, 0.0371) is ours
    assert torch.equal(ours, weights - (gradient - correction) * 0.0371)
    assert ours._version > version, "torch knows that it was written to"


def test_a_step_of_a_long_vector_is_the_same_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, gradient, correction = torch.randn(3, 100_003, generator=torch.Generator().manual_seed(1))
    fast = descend(weights.clone(), gradient.clone(), correction, 0.1)
    monkeypatch.setattr(select_long, "FAST_FROM", len(weights) + 1)
    assert torch.equal(descend(weights.clone(), gradient.clone(), correction, 0.1), fast)


@pytest.mark.usefixtures("three_threads")
def test_clients_that_are_threads_do_not_disturb_each_other() -> None:
    vectors = [torch.randn(100_000, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]

    def rounds(vector: torch.Tensor) -> list[bytes]:
        warm = WarmTopK()
        return [warm(vector * (1 + step / 500), 0.1).numpy().tobytes() for step in range(10)]

    alone = [rounds(vector) for vector in vectors]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(rounds, vectors)) == alone


@pytest.mark.parametrize("density", [0.005, 0.1, 0.4])
def test_top_k_is_the_same_without_it(density: float, monkeypatch: pytest.MonkeyPatch) -> None:
    vector = torch.randn(100_003, generator=torch.Generator().manual_seed(1))
    vector[::3] = vector.abs().quantile(1 - density)  # ties at the threshold
    fast = top_k(vector, density)
    with monkeypatch.context() as patch:
        patch.setattr(select_long, "FAST_FROM", len(vector) + 1)
        assert top_k(vector, density).numpy().tobytes() == fast.numpy().tobytes()


def test_numpy_does_it_where_numba_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "common.vectors.select_fast", None)  # as if its import failed
    assert select_long._fastest_pass.__wrapped__() is band_by_numpy


def cache_hits(folder: Path) -> int:
    """Use it in a process of its own, which may leave its machine code in that folder alone."""
    here = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", USE_IT], env=os.environ | here, check=True, stdout=subprocess.PIPE)
    return int(done.stdout)


def test_nothing_is_left_where_nothing_can_be_written() -> None:
    assert cache_hits(Path("/dev/null/nowhere")) == 0


@pytest.mark.slow
def test_the_next_process_finds_what_the_first_has_made(tmp_path: Path) -> None:
    assert [cache_hits(tmp_path), cache_hits(tmp_path)] == [0, 1]
