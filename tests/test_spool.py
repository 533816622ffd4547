"""What is in files instead of in memory: payloads, uploads that are read block by block, a model at rest."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.codec import payload, planes
from common.codec.bytestream import varint
from common.codec.vector import decode, decode_entries, encode
from common.errors import DecodeError
from common.messages import messages as wire
from common.rounds.mean import RunningMean
from common.rounds.state import ReceivedUpload, ServerState, Upload
from common.storage.spool import Spool, SpoolError, spooled
from common.vectors import entries
from common.vectors.entries import Blocks
from strategies.flower.shelf import Shelf
from tests.harness.random_vectors import mutated, plain, random_vector, sealed

MUTATIONS = 3_000


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few values, so that short vectors have many; planes of short vectors are coded as well."""
    monkeypatch.setattr(planes, "BLOCK", 16)
    monkeypatch.setattr(entries, "BLOCK", 16)
    monkeypatch.setattr(planes, "SHORTEST", 1)


def in_a_file(data: bytes) -> Spool:
    return spooled([data], len(data))


def uploaded(vectors: list[bytes], like: ServerState) -> ReceivedUpload:
    """Return an upload of encoded vectors as the server reads it from a file."""
    lengths = b"".join(varint(len(one)) for one in vectors[:-1])
    return payload.decode_upload(in_a_file(b"".join([lengths, *vectors])), like)


def bits_of(mean: RunningMean) -> list[bytes]:
    """Return the bits of all sums, each rounded once at its end; they are used up."""
    return [total.total().tobytes() for total in mean._sums.values()]


def test_bytes_come_back_by_slices_in_whatever_order_they_were_written() -> None:
    spool = Spool(10)
    spool.write(6, b"6789")
    spool.write(0, memoryview(b"012345"))
    assert (len(spool), spool[:], spool[2:4], spool[8:20], spool[10:12]) == (10, b"0123456789", b"23", b"89", b"")


@given(hnp.arrays(np.float32, st.integers(1, 700), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_a_vector_in_a_file_is_the_vector_in_memory(values: np.ndarray) -> None:
    data = encode(torch.from_numpy(values))
    here, there = decode_entries(data, values.size), decode_entries(in_a_file(data), values.size)
    assert here.dense().numpy().tobytes() == there.dense().numpy().tobytes()


@pytest.mark.usefixtures("small_blocks")
def test_what_is_refused_in_memory_is_refused_in_a_file_and_leaves_the_sum_as_it_was() -> None:
    generator = np.random.default_rng(9)
    refused = late = 0
    for _ in range(MUTATIONS // 20):
        vector = random_vector(generator)
        data = plain(vector)
        for _ in range(20):
            damaged = mutated(data, len(vector), generator)
            mean, expected = RunningMean(), RunningMean()
            mean.add(Upload(model=vector))
            expected.add(Upload(model=vector))
            in_memory, in_file = added_in_memory(damaged, vector, expected), added_in_file(damaged, vector, mean)
            assert (in_memory.reason == "") == (in_file.reason == "")
            assert in_file.reason.endswith(in_memory.reason)
            refused += in_file.reason != ""
            late += in_file.late
            assert (mean.clients, mean.model_values) == (expected.clients, expected.model_values)
            assert bits_of(mean) == bits_of(expected)
    assert refused > MUTATIONS / 2
    assert late > 20, "some are found only when they are added"


@dataclass
class Outcome:
    """Why something was not added, and whether that was found only while it was."""

    reason: str = ""
    late: bool = False


def added_in_memory(data: bytes, like: torch.Tensor, mean: RunningMean) -> Outcome:
    try:
        mean.add(Upload(model=decode(data, len(like))))
    except DecodeError as error:
        return Outcome(str(error))
    return Outcome()


def added_in_file(data: bytes, like: torch.Tensor, mean: RunningMean) -> Outcome:
    upload = None
    try:
        upload = uploaded([data], ServerState(model=like))
        mean.add(upload)
    except DecodeError as error:
        return Outcome(str(error), late=upload is not None)
    return Outcome()


@pytest.mark.parametrize("spread", [1.0, 1e30], ids=["exact", "carried"])
@pytest.mark.usefixtures("small_blocks")
def test_a_bad_block_is_taken_back_from_all_sums(spread: float) -> None:
    """The last value of the second vector is not a number; all of the first, and blocks of the second, were added."""
    model, control = torch.randn(100) * spread, torch.randn(100)
    like = ServerState(model=model, control=control)
    good = [plain(model / spread), plain(control)]
    broken = bytearray(control.numpy().tobytes())
    broken[-4:] = np.float32(np.nan).tobytes()
    body = b"\0" + broken
    bad = [plain(model), sealed(body)]
    mean, expected = RunningMean(), RunningMean()
    for one in (mean, expected):
        assert one.add(uploaded(good, like)) == 200
    with pytest.raises(DecodeError, match="not finite"):
        mean.add(uploaded(bad, like))
    assert (mean.clients, mean.model_values) == (1, 100)
    for one in (mean, expected):
        one.add(uploaded(good[::-1], like))
    assert bits_of(mean) == bits_of(expected)


def test_an_upload_in_a_file_with_more_values_than_allowed_is_refused_when_it_is_added() -> None:
    like = ServerState(model=torch.ones(8))
    upload = payload.decode_upload(in_a_file(plain(like.model)), like, most_values=7)
    assert isinstance(upload.model, Blocks)
    with pytest.raises(DecodeError, match="8 values are not zero where 7"):
        RunningMean().add(upload)


@pytest.mark.parametrize("size", [1, 2, entries.BLOCK - 1, 3 * entries.BLOCK + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mean_in_the_memory_of_its_sum(size: int, dtype: torch.dtype) -> None:
    rows = torch.randn(3, size).to(dtype)
    mean = RunningMean()
    mean.add(Upload(model=rows))
    assert mean.mean().model.equal((rows.double().sum(dim=0) / 3).to(dtype))


def test_a_large_payload_is_in_a_file_and_flower_sees_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ServerState(model=torch.arange(1.0, 51.0))
    small = payload.encode_state(state)
    monkeypatch.setattr(payload, "PIECE_BYTES", 64)
    large = payload.encode_state(state)
    assert isinstance(small, bytes)
    assert isinstance(large, Spool)
    assert large[:] == small
    arrays = wire.pack_state(state)
    array = arrays["payload"]
    back = Array.inflate(array.deflate(), children=array.children)  # as it goes over a link of Flower's own
    assert back.data == small


def no_room(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", no_room)
    with pytest.raises(SpoolError, match=r"cannot write a temporary file in .*: No space left on device"):
        Spool(3).write(0, b"abc")


def test_a_vector_on_the_shelf_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.flower.shelf.PIECE_BYTES", 64)
    shelf = Shelf()
    short, long = torch.ones(3), torch.randn(100_001)
    assert shelf.keep(short) is short
    kept = shelf.keep_state(ServerState(model=long, control=long + 1))
    for _ in range(2):
        assert kept.model.equal(long)
        assert kept.control is not None
        assert kept.control.equal(long + 1)
        shelf.let_go()
    kept.model.add_(1)
    shelf.let_go()
    assert kept.model.equal(long + 1)
