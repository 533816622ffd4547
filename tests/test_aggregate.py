"""The mean of uploads: exact, the same in any order, in memory that does not depend on how many there are."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.codec.vector import decode_entries, encode
from common.errors import DivergedError
from common.rounds.mean import RunningMean
from common.rounds.state import ReceivedUpload, Upload
from common.vectors.exact_sum import ExactSum
from common.vectors.remainder import Remainder
from common.vectors.sparsity import top_k


def received(vector: torch.Tensor) -> ReceivedUpload:
    return ReceivedUpload(model=decode_entries(encode(vector), len(vector)))


def mean_bits(uploads: list[Upload | ReceivedUpload]) -> bytes:
    mean = RunningMean()
    for upload in uploads:
        mean.add(upload)
    return mean.mean().model.numpy().tobytes()


def test_the_mean_is_uniform_and_values_are_counted() -> None:
    mean = RunningMean()
    first = Upload(model=torch.tensor([1.0, 0.0, 3.0]), control_change=torch.tensor([0.0, 2.0, 0.0]))
    assert mean.add(first) == 3
    assert mean.add(Upload(model=torch.tensor([3.0, 0.0, 0.0]), control_change=torch.tensor([0.0, 4.0, 0.0]))) == 2
    assert (mean.clients, mean.model_values) == (2, 3)
    result = mean.mean()
    assert result.model.tolist() == [2.0, 0.0, 1.5]
    assert result.control_change is not None
    assert result.control_change.tolist() == [0.0, 3.0, 0.0]


@pytest.mark.parametrize("spread", [0.0, 8.0, 40.0], ids=["alike", "wide", "very wide"])
@pytest.mark.parametrize("density", [0.05, 1.0])
def test_a_hundred_uploads_have_the_same_mean_in_any_order(spread: float, density: float) -> None:
    """The wider the magnitudes, the further from what float64 adds without rounding."""
    generator = np.random.default_rng(7)
    magnitudes = 10.0 ** generator.uniform(-spread / 2, spread / 2, (100, 3000))
    vectors = torch.from_numpy((generator.standard_normal((100, 3000)) * magnitudes).astype(np.float32))
    uploads: list[Upload | ReceivedUpload] = [received(top_k(vector, density)) for vector in vectors]
    expected = mean_bits(uploads)
    for _ in range(20):
        assert mean_bits([uploads[place] for place in generator.permutation(100)]) == expected
    assert mean_bits([Upload(model=top_k(vectors, density))]) == expected, "a batch of rows is the same"


def test_additions_in_float64_alone_would_depend_on_the_order() -> None:
    """The test above can fail: what it asserts does not hold of a plain sum."""
    values = np.array([1e16, 1.0, 1.0, -1e16], np.float32).astype(np.float64)
    assert sum(values) != sum(values[[1, 2, 0, 3]])


@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3), min_size=1),
)
def test_the_sum_is_the_exact_one_rounded_once(rows: list[list[float]]) -> None:
    total = ExactSum(3)
    for number, row in enumerate(rows):
        values = np.array(row, np.float32)
        if number % 2:
            places = np.flatnonzero(values)
            total.add_at(places, values[places])
        else:
            total.add(values)
    together = ExactSum(3)
    together.add_rows(np.array(rows, np.float32))
    expected = [math.fsum(float(np.float32(row[place])) for row in rows) for place in range(3)]
    assert total.total().tolist() == expected
    assert together.total().tolist() == expected


def test_a_sum_of_float64_is_exact_too() -> None:
    total = ExactSum(1)
    for value in (1e300, 1.0, 1e-300, -1e300):
        total.add(np.array([value]))
    assert total.total().tolist() == [1.0]


def test_what_a_mean_is_rounded_off_is_in_the_next_one() -> None:
    """A third cannot be written: what is missing to it is carried until it makes up for a whole step."""
    total, carried = 0.0, None
    for number in range(1, 1000):
        mean, rest = RunningMean(), Remainder(2)
        for value in (1.0, 0.0, 0.0):
            mean.add(Upload(model=torch.tensor([value, 0.0])))
        total += float(mean.mean(carried, rest).model[0])
        carried = rest
        assert abs(3 * total - number) < 2e-7  # half of a float32's last place, three times over
    assert carried is not None
    assert abs(3 * total + float(carried.tensor()[0]) - 999) < 1e-12


def test_what_is_owed_to_a_place_waits_there_while_nobody_uploads_it() -> None:
    owed, rest = Remainder.of(torch.tensor([1e-3, 1e-3])), Remainder(2)
    mean = RunningMean()
    mean.add(Upload(model=torch.tensor([0.0, 1.0])))
    assert mean.mean(owed, rest).model.tolist() == [0.0, torch.tensor(1.001).item()]
    assert rest.tensor()[0] == owed.tensor()[0]
    assert abs(float(rest.tensor()[1])) < 1e-7


def test_a_long_remainder_is_in_a_file_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    here = Remainder.of(values)
    monkeypatch.setattr("common.vectors.remainder.PIECE_BYTES", 64)
    there = Remainder.of(values)
    assert here.tensor().equal(values)
    assert there.tensor().equal(values)
    assert np.array_equal(here.read(10, 20), there.read(10, 20))


def test_memory_does_not_grow_with_the_number_of_uploads() -> None:
    size = 300_000
    upload = received(top_k(torch.randn(size, generator=torch.Generator().manual_seed(0)), 0.05))
    peaks = []
    for clients in (2, 40):
        tracemalloc.start()
        mean_bits([upload] * clients)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.05 * peaks[0] < 1.05 * 20 * size


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_is_no_upload(value: float) -> None:
    with pytest.raises(DivergedError):
        RunningMean().add(Upload(model=torch.tensor([1.0, value])))
