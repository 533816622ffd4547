"""Vectors <-> bytes: hand-checked ones, round trips, what is refused, and how near to the limit it is."""

from __future__ import annotations

import math
import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.codec import bytestream, places
from common.codec.bytestream import Reader, deflate, inflate, varint
from common.codec.places import WAYS, Gaps, information_bits, places_of
from common.codec.vector import decode, decode_entries, encode
from common.errors import DecodeError
from common.rounds.state import Precision
from common.vectors.sparsity import top_k
from tests.harness.random_vectors import mutated, random_vector
from tests.harness.textbook_codec import plain_decode

ROUND_TRIPS = 20_000
MUTATIONS = 50_000


def sealed(hexadecimal: str) -> bytes:
    """Add the checksum to a body."""
    body = bytes.fromhex(hexadecimal)
    return body + zlib.crc32(body).to_bytes(4, "little")


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize(
    ("values", "precision", "expected"),
    [
        ([0.0, 0.0, -2.0, 0.0, 0.0, 0.0], "float32", "01 01 04 00 00 00 c0"),
        ([0.0, 0.0, -2.0, 0.0, 0.0, 0.0], "bfloat16", "05 01 04 00 c0"),
        ([1.0, -2.0], "float32", "00 00 00 80 3f 00 00 00 c0"),
        ([0.0] * 20 + [1.0] + [0.0] * 19, "bfloat16", "06 01 34 80 3f"),
        ([0.0, 0.0], "float32", "01 00 00"),
        ([-0.0], "bfloat16", "04 00 80"),
    ],
)
def test_hand_checked_vectors(values: list[float], precision: Precision, expected: str) -> None:
    """In the fourth, l = 5: the low bits of 20 are 0 0 1 0 1, and of two high bits the first is set."""
    assert encode(torch.tensor(values), precision).hex(" ") == sealed(expected).hex(" ")


def test_the_example_of_the_documentation() -> None:
    assert encode(torch.tensor([0.0, 0.0, -2.0, 0.0, 0.0, 0.0]), "bfloat16").hex(" ") == "05 01 04 00 c0 64 75 13 2a"
    in_two_parts = sealed("06 01 06 00 c0")
    assert decode(in_two_parts, 6).tolist() == [0.0, 0.0, -2.0, 0.0, 0.0, 0.0]


def test_gaps_by_hand() -> None:
    """Places 0, 1, 300 and 1000 are 0 | 0 | 255 43 | 255 255 189, and 699 = 255 + 255 + 189."""
    chosen = np.array([0, 1, 300, 1000], np.int32)
    gaps = Gaps().encode(chosen, 2000)
    assert bytes(gaps) == bytes([0, 0, 255, 43, 255, 255, 189])
    assert Gaps().decode(memoryview(deflate([gaps])[0]), 2000, 4).tolist() == chosen.tolist()


def test_every_vector_comes_back_bit_by_bit() -> None:
    generator = np.random.default_rng(4)
    ways = set()
    for _ in range(ROUND_TRIPS):
        vector, precision = random_vector(generator)
        data = encode(vector, precision)
        ways.add(data[0])
        assert same_bits(decode(data, len(vector)), vector)
    assert {form & 3 for form in ways} == {0, 1, 2, 3}
    assert {form >> 2 for form in ways} >= {0, 1, 2, 3, 6, 7}, "float32 and bfloat16, with coded planes and without"


def test_a_decoder_that_knows_the_documentation_only_agrees() -> None:
    generator = np.random.default_rng(8)
    vectors = [random_vector(generator) for _ in range(500)]
    vectors += [(torch.zeros(size), "float32") for size in (1, 9, 281, 5000)]
    for vector, precision in vectors:
        data = encode(vector, precision)
        assert np.array(plain_decode(data, len(vector)), np.float32).tobytes() == vector.numpy().tobytes()


@pytest.mark.parametrize("zeros", [1, 100, 20_000])
def test_a_nearly_dense_vector_is_written_as_a_dense_one(zeros: int) -> None:
    vector = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    vector[torch.arange(zeros) * (200_000 // zeros)] = 0
    assert len(encode(vector)) < 1.005 * len(encode(torch.where(vector == 0, 1.0, vector)))


@given(
    hnp.arrays(
        np.float32,
        st.integers(1, 700),
        elements=st.just(0.0) | st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_any_finite_float32_comes_back(values: np.ndarray) -> None:
    vector = torch.from_numpy(values)
    assert same_bits(decode(encode(vector), len(vector)), vector)


def test_a_long_vector_comes_back_though_threads_code_it() -> None:
    vector = top_k(torch.randn(3 * bytestream.CHUNK_BYTES, generator=torch.Generator().manual_seed(1)), 0.4)
    assert same_bits(decode(encode(vector), len(vector)), vector)
    dense = torch.randn(3 * bytestream.CHUNK_BYTES)
    assert same_bits(decode(encode(dense), len(dense)), dense)


@given(st.lists(st.binary(max_size=300), max_size=4), st.integers(1, 3))
def test_streams_of_several_threads_are_one_stream(sections: list[bytes], threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytestream, "CHUNK_BYTES", 100)
        patch.setattr("os.cpu_count", lambda: threads)
        coded = deflate(sections)
    assert [zlib.decompress(one, -15) for one in coded] == sections
    assert [inflate(memoryview(one), 300, "data") for one in coded] == sections


@given(hnp.arrays(np.bool_, st.integers(0, 70)))
def test_places_of_a_mask(mask: np.ndarray) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "LONG", 0)
        assert places_of(mask).tolist() == np.flatnonzero(mask).tolist()


@given(st.integers(1, 400), st.data())
def test_every_way_writes_any_places(size: int, drawn: st.DataObject) -> None:
    chosen = np.array(sorted(drawn.draw(st.sets(st.integers(0, size - 1)))), np.int32)
    for way in WAYS.values():
        data = way.encode(chosen, size)
        if way.is_huffman_coded:
            (data,) = deflate([data])
        else:
            assert len(data) == way.size_bytes(size, chosen.size)
        assert way.decode(memoryview(data), size, chosen.size).tolist() == chosen.tolist()


@given(st.integers(0, 2**35 - 1))
def test_numbers_come_back(number: int) -> None:
    assert Reader(varint(number)).varint("a number") == number


def test_a_value_that_is_not_rounded_is_not_sent_as_if_it_were() -> None:
    with pytest.raises(ValueError, match="not rounded"):
        encode(torch.tensor([1.0001, 0.0]), "bfloat16")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("20 00", "unknown form"),
        ("01", "number of values"),
        ("01 07", "7 values where at most 6"),
        ("01 81 00 04 00 00 00 c0", "not written as a number"),
        ("01 ff ff ff ff ff 01", "not written as a number"),
        ("01 01", "bytes of places"),
        ("01 01 44 00 00 00 c0", "unused bits"),
        ("01 02 04 00 00 00 c0 00 00 00 c0", "1 places for 2 values"),
        ("01 01 04 00 00 c0", "bytes of values"),
        ("01 01 04 00 00 00 c0 00", "1 bytes too many"),
        ("01 01 04 00 00 00 00", "0 values are not zero where 1"),
        ("01 01 04 00 00 80 7f", "not finite"),
        ("05 01 04 c0 7f", "not finite"),
        ("06 02 33 00 c0 00 c0", "do not increase"),
        ("03 01 05 ff ff ff ff ff 00 00 00 c0", "gaps: cannot be inflated"),
        ("03 02 04 fb cf 0c 00 00 00 00 c0 00 00 00 c0", "1 places for 2 values"),
        ("00 00 00 80 3f", "bytes of values"),
        ("09 01 05 04 63 00 00 00 00 00 00 00", "a plane"),
    ],
)
def test_the_decoder_says_what_is_wrong(body: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode(sealed(body), 6)


def test_damage_on_the_way_is_found() -> None:
    data = bytearray(encode(torch.tensor([0.0, 1.0, 0.0, 3.0])))
    for place in range(len(data)):
        damaged = data.copy()
        damaged[place] ^= 4
        with pytest.raises(DecodeError, match="checksum"):
            decode(bytes(damaged), 4)
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode(bytes(data[:length]), 4)


def test_more_values_than_allowed_are_refused() -> None:
    sparse, dense = torch.tensor([0.0, 1.0, 0.0, 3.0, *[0.0] * 20]), torch.ones(6)
    assert decode(encode(sparse), 24, max_nonzeros=2).equal(sparse)
    with pytest.raises(DecodeError, match="2 values where at most 1"):
        decode(encode(sparse), 24, max_nonzeros=1)
    with pytest.raises(DecodeError, match="6 values are not zero where 5"):
        decode(encode(dense), 6, max_nonzeros=5)


@pytest.mark.parametrize("form", [3, 9])
def test_an_inflate_bomb_is_refused_before_it_unfolds(form: int) -> None:
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = stream.compress(bytes(200 << 20)) + stream.flush()
    body = bytes([form]) + varint(40) + varint(len(bomb)) + (b"\xff" * 5 + bytes(3) if form == 9 else b"") + bomb
    body += bytes(3 * 40)  # the other planes
    data = body + zlib.crc32(body).to_bytes(4, "little")
    tracemalloc.start()
    with pytest.raises(DecodeError, match="more than the expected"):
        decode(data, 64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_no_mutation_crashes_the_decoder_or_takes_much_memory() -> None:
    """Half of the mutated inputs get a checksum that is right again, so that they reach what is behind it."""
    generator = np.random.default_rng(5)
    refused = accepted = 0
    worst = 0.0
    while refused + accepted < MUTATIONS:
        vector, precision = random_vector(generator)
        data = encode(vector, precision)
        for _ in range(20):
            damaged = mutated(data, generator)
            size = len(vector) if generator.random() < 0.9 else int(generator.integers(0, 5000))
            try:
                back = decode(damaged, size)
                assert back.shape == (size,)
                assert bool(back.isfinite().all())
                accepted += 1
            except DecodeError:
                refused += 1
            if generator.random() < 0.05:
                worst = max(worst, _peak_bytes(damaged, size) / (4 * size + len(damaged) + 10_000))
    assert refused > 0.7 * MUTATIONS
    assert accepted > 100, "a repaired checksum over changed values is valid"
    assert worst < 10


def _peak_bytes(data: bytes, size: int) -> int:
    """Return what decoding takes at its peak; of three times the least, as other threads may take something too."""
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        with suppress(DecodeError):
            decode(data, size)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(peaks)


@given(st.binary(max_size=60), st.integers(0, 20))
def test_no_bytes_make_the_decoder_fail_otherwise(data: bytes, size: int) -> None:
    try:
        vector = decode(sealed(data.hex()), size)
    except DecodeError:
        return
    assert vector.shape == (size,)


@pytest.mark.parametrize("density", [0.2, 0.1, 0.05, 0.01])
def test_places_take_what_information_theory_allows(density: float) -> None:
    generator = np.random.default_rng(6)
    size, count = 2_000_000, int(2_000_000 * density)
    chosen = np.sort(generator.choice(size, count, replace=False)).astype(np.int32)
    (coded,) = deflate([Gaps().encode(chosen, size)])
    assert len(coded) < 1.02 * information_bits(size, count) / 8


def test_a_small_upload_has_little_around_it() -> None:
    """The model of BlogFeedback at density 0.1, d = 281 and K = 28."""
    vector = top_k(torch.randn(281, generator=torch.Generator().manual_seed(0)), 0.1)
    bound = math.ceil(information_bits(281, 28) / 8)
    assert len(encode(vector)) <= bound + 28 * 4 + 16
    assert len(encode(vector.to(torch.bfloat16).float(), "bfloat16")) <= bound + 28 * 2 + 16 < 28 * 4


def test_entries_are_the_vector() -> None:
    vector = torch.tensor([0.0, 5.0, 0.0, 0.0, -1.0] + [0.0] * 30)
    entries = decode_entries(encode(vector), 35)
    assert entries.places is not None
    assert entries.places.tolist() == [1, 4]
    assert entries.values.tolist() == [5.0, -1.0]
    assert entries.dense().equal(vector)
