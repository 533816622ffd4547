"""Vectors <-> bytes: hand-checked ones, round trips, what is refused, and how near to the limit it is."""

from __future__ import annotations

import math
import tracemalloc
import zlib
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.codec import bytestream, few, places, planes, vector
from common.codec.bytestream import Reader, deflate, inflate, varint
from common.codec.change import Known as KnownEntries
from common.codec.places import WAYS, Gaps, entries_of, information_bits, places_of
from common.codec.range_coder import RangeReader, RangeWriter
from common.codec.scales import BFLOAT16, FLOAT32, MOST_BESIDE, Grid, Scale, Units
from common.codec.symbols import CONTEXTS_OF_NUMBER, Numbers, gaps
from common.codec.vector import Known, decode, decode_entries, encode
from common.errors import DecodeError
from common.rounds.rounding import LARGEST_ON_GRID
from common.vectors.entries import Entries
from common.vectors.sparsity import top_k
from tests.harness.random_vectors import STEP, Drawn, draw, mutated, plain, sealed
from tests.harness.textbook_codec import book_decode

SOME = 500
ROUND_TRIPS = 20_000
MUTATIONS = 50_000
SCALES = {FLOAT32.code, BFLOAT16.code, Grid.code, Units.code}
EMPTY = np.empty(0, np.int32)
EXAMPLE = torch.tensor([0.0, 0.0, -2.0, 0.0, 0.0, 0.0])


@pytest.fixture
def many_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short vectors are written as long ones are, but for the very shortest."""
    for scale in (Scale, Units):
        monkeypatch.setattr(scale, "most_few", 1)
    monkeypatch.setattr(vector, "MOST_KNOWN_OF_FEW", 1)
    monkeypatch.setattr(planes, "SHORTEST", 16)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([0.0, 0.0, -2.0, 0.0, 0.0, 0.0], 4, "01 01 04 00 00 00 c0"),
        ([0.0, 0.0, -2.0, 0.0, 0.0, 0.0], 2, "05 01 04 00 c0"),
        ([1.0, -2.0], 4, "00 00 00 80 3f 00 00 00 c0"),
        ([0.0] * 20 + [1.0] + [0.0] * 19, 2, "06 01 34 80 3f"),
        ([0.0, 0.0], 4, "01 00 00"),
        ([-0.0], 2, "04 00 80"),
    ],
)
def test_hand_checked_vectors(values: list[float], width: int, expected: str) -> None:
    """In the fourth, l = 5: the low bits of 20 are 0 0 1 0 1, and of two high bits the first is set."""
    data = plain(torch.tensor(values), width)
    assert data.hex(" ") == sealed(bytes.fromhex(expected)).hex(" ")
    assert same_bits(decode(data, len(values)), torch.tensor(values))


def test_the_examples_of_the_documentation() -> None:
    assert plain(EXAMPLE, 2).hex(" ") == "05 01 04 00 c0 64 75 13 2a"
    in_two_parts = sealed(bytes.fromhex("06 01 06 00 c0"))
    assert decode(in_two_parts, 6).equal(EXAMPLE)
    assert encode(EXAMPLE, Grid(1.0)).hex(" ") == "82 8a 40 0b 43"
    assert encode(EXAMPLE, Grid(1.0), entries_of(1.5 * EXAMPLE)).hex(" ") == "8a c8 d1 cc"


def test_many_numbers_by_hand(many_soon: None) -> None:
    """Of the places 1 and 3 that are known the second stays, and of 0, 2, 4, 5, ... the second comes: 2, less by 1."""
    size = 80
    before, after = torch.zeros(size), torch.zeros(size)
    before[1], before[3] = 4.0, 8.0
    after[3], after[2] = 9.0, -1.0
    data = encode(after, Grid(1.0), entries_of(before))
    # Of 2 places the bit 1 is set; of 78 place 1, in two parts with l = 6: low bits 100000, then one of 2 bits.
    assert data.hex(" ") == sealed(bytes.fromhex("8e 01 01 02 01 01 02 41 02 01")).hex(" ")
    assert decode(data, size, known=Known(given=entries_of(before), step=1.0)).equal(after)


def test_gaps_by_hand() -> None:
    """Places 0, 1, 300 and 1000 are 0 | 0 | 255 43 | 255 255 189, and 699 = 255 + 255 + 189."""
    chosen = np.array([0, 1, 300, 1000], np.int32)
    gaps = Gaps().encode(chosen, 2000)
    assert bytes(gaps) == bytes([0, 0, 255, 43, 255, 255, 189])
    assert Gaps().decode(memoryview(deflate([gaps])[0]), 2000, 4).tolist() == chosen.tolist()


def come_back(count: int, seed: int) -> Counter[int]:
    """Write and read so many vectors; return how many there were of each form."""
    generator, forms = np.random.default_rng(seed), Counter[int]()
    for _ in range(count):
        drawn = draw(generator)
        data = drawn.encoded()
        forms[data[0]] += 1
        assert same_bits(drawn.decoded(data), drawn.vector)
    return forms


def test_every_vector_comes_back_bit_by_bit() -> None:
    assert {form & 3 for form in come_back(SOME, 4) if form >= 128} == SCALES


def test_every_vector_comes_back_also_as_one_of_many(many_soon: None) -> None:
    forms = come_back(SOME, 4)
    assert {form & 3 for form in forms if form < 128} == {0, 1, 2, 3}
    assert {form >> 2 for form in forms if form < 128} >= {0, 1, 2, 3, 6, 7}, "both types, planes coded or not"
    assert {form & 3 for form in forms if form & 0x8C == 0x8C} == SCALES, "given, many"
    assert {form & 3 for form in forms if form & 0x8C == 0x84} == {Grid.code, Units.code}, "not given, many"


@pytest.mark.slow
def test_twenty_thousand_vectors_come_back_bit_by_bit() -> None:
    assert {form & 12 for form in come_back(ROUND_TRIPS, 14) if form >= 128} == {0, 4, 8, 12}


@pytest.mark.parametrize("is_many", [False, True])
def test_a_decoder_that_knows_the_documentation_only_agrees(is_many: bool, request: pytest.FixtureRequest) -> None:
    if is_many:
        request.getfixturevalue("many_soon")
    generator = np.random.default_rng(8)
    for _ in range(250):
        drawn = draw(generator)
        given = None if drawn.given is None else drawn.given.dense().tolist()
        by_the_book = book_decode(drawn.encoded(), len(drawn.vector), given, STEP)
        assert np.array(by_the_book, np.float32).tobytes() == drawn.vector.numpy().tobytes()


def test_a_vector_of_zeros_takes_a_form_and_a_checksum() -> None:
    for size in (1, 9, 281, 5000):
        assert len(data := encode(torch.zeros(size), Grid(1.0))) <= 4
        assert not decode(data, size, known=Known(step=1.0)).any()


@pytest.mark.parametrize("scale", [FLOAT32, BFLOAT16, Grid(STEP), Units(STEP / 7)])
@pytest.mark.parametrize("size", [281, 40_000])
def test_what_is_known_is_not_sent(scale: Scale, size: int) -> None:
    """A vector that is given itself takes next to nothing; and what stays is cheaper than what comes."""
    steps = torch.randint(-60, 61, (size,), generator=torch.Generator().manual_seed(0)).float()
    sparse = top_k(steps * STEP / (7 if isinstance(scale, Units) else 1), 0.1).to(torch.float32) + 0.0
    vector = sparse.bfloat16().float() if scale is BFLOAT16 else sparse
    alone, itself = len(encode(vector, scale)), len(encode(vector, scale, entries_of(vector)))
    assert itself < 0.3 * alone


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
    assert same_bits(decode(plain(vector), len(vector)), vector)


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


@pytest.mark.parametrize(("scale", "value"), [(BFLOAT16, 1.0001), (Grid(0.5), 1.0001), (Grid(0.5), 2.0**100)])
@pytest.mark.parametrize("size", [2, 100_000])
def test_a_value_that_is_not_rounded_is_not_sent_as_if_it_were(scale: Scale, value: float, size: int) -> None:
    with pytest.raises(ValueError, match="not rounded"):
        encode(torch.full((size,), value), scale)


def test_a_mean_that_is_not_in_units_goes_as_it_is() -> None:
    vector = torch.tensor([0.25, 1.0, 1 / 3, 0.0, 0.0, 0.0])
    data = encode(vector, Units(0.25))
    assert data == plain(vector)
    assert same_bits(decode(data, 6), vector)


def test_a_grid_has_an_end() -> None:
    ends = torch.tensor([LARGEST_ON_GRID * 0.5, -LARGEST_ON_GRID * 0.5])
    assert same_bits(decode(encode(ends, Grid(0.5)), 2, known=Known(step=0.5)), ends)
    with pytest.raises(DecodeError, match="beyond the end"):
        Grid(0.5).values(np.array([LARGEST_ON_GRID + 1]))


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
        decode(sealed(bytes.fromhex(body), 6), 6)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("90 2c", "unknown form"),
        ("8a 2c", "given another"),
        ("82 2c", "no step"),
        ("80 2c 00", "zeros at the end"),
        ("80 ff ff ff ff ff ff ff", "bytes too many|too long|would have written"),
        ("83 00 00 00 00 00 00 00 00 2c", "a unit that is none"),
        ("83 00 00 00 00 00 00 f0 7f 2c", "a unit that is none"),
        ("84 08 00 00 00", "unknown form of a set"),
        ("84 00 00 00 00 06", "unknown form of numbers"),
        ("84 00 00 00 00 08", "unknown form of numbers"),
        ("84 00 00 00 01", "1 of 6 places"),
        ("84 00 00 01 00", "0 of 6 places"),
        ("84 00 00 01 07", "7 of 6 places"),
        ("84 00 00 01 01 01 44 02", "unused bits"),
        ("84 00 00 01 01 01 04", "bytes of a plane"),
        ("84 00 00 01 01 01 04 02 00", "1 bytes too many"),
        ("84 00 00 01 01 01 04 00", "an entry that is zero"),
        ("84 00 00 01 01 04 04 00 00 00 ff", "not finite"),
    ],
)
def test_the_decoder_says_what_is_wrong_with_whole_numbers(body: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode(sealed(bytes.fromhex(body), 6), 6)


def test_few_numbers_are_not_read_where_much_is_known_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take their time, which nobody may ask for with a few bytes."""
    size = vector.MOST_KNOWN_OF_FEW + 1
    with pytest.raises(DecodeError, match="given 8193 entries as one of few"):
        decode(sealed(b"\x88", size), size, known=Known(given=entries_of(torch.ones(size))))
    monkeypatch.setattr(Grid, "most_few", 257)
    data = encode(torch.ones(257), Grid(1.0))
    monkeypatch.undo()
    with pytest.raises(DecodeError, match="beyond the 256 that were expected"):
        decode(data, 257, known=Known(step=1.0))


def test_few_numbers_take_few_bytes() -> None:
    """What is longer is not looked at."""
    with pytest.raises(DecodeError, match="1000000 bytes of few numbers"):
        decode(sealed(b"\x80" + bytes(999_999) + b"\1", 6), 6)


def test_nothing_is_far_beside_its_unit() -> None:
    with pytest.raises(DecodeError, match="far beside"):
        Units(1.0).values(np.array([1]), np.array([-MOST_BESIDE - 1]))


def test_places_of_few_are_within_the_longest_vector() -> None:
    """Gaps as no writer would write them, which together are more than numpy's integers hold."""
    known, size = KnownEntries.of(Entries(size=2**31 - 1, places=EMPTY, values=EMPTY.astype(np.float32))), 2**31 - 1
    writer, far = RangeWriter(few._CONTEXTS), gaps(few._GAPS, (size // 2).bit_length() - 1)
    writer.write([few._HOW_MANY.path(2), far.path(2**62 - 1), few._OTHER.path(1), far.path(2**62), few._OTHER.path(1)])
    with pytest.raises(DecodeError, match="beyond the end"):
        few.decode_few(Reader(writer.end()), known, Grid(1.0), size)


@given(st.lists(st.integers(-(2**37), 2**37)), st.integers(0, 20))
def test_any_numbers_of_few_come_back(numbers: list[int], low_bits: int) -> None:
    moves, near = Numbers(0, less=1), [abs(number) for number in numbers]
    distances = gaps(CONTEXTS_OF_NUMBER, low_bits)
    writer, contexts = RangeWriter(2 * CONTEXTS_OF_NUMBER), 2 * CONTEXTS_OF_NUMBER
    writer.write(map(moves.path, numbers))
    writer.write(map(distances.path, near))
    reader = RangeReader(writer.end(), contexts)
    assert reader.read([moves.tree] * len(numbers)) == numbers
    assert reader.read([distances.tree] * len(near)) == near
    reader.end()


def test_a_vector_of_another_size_is_noticed() -> None:
    with pytest.raises(DecodeError, match="checksum"):
        decode(encode(torch.tensor([0.0, 1.0, 0.0, 3.0]), Grid(1.0)), 5, known=Known(step=1.0))


def test_damage_on_the_way_is_found() -> None:
    vector = torch.tensor([0.0, 1.0, 0.0, 3.0])
    for data in (bytearray(encode(vector)), bytearray(plain(vector))):
        for place in range(len(data)):
            damaged = data.copy()
            damaged[place] ^= 4
            with pytest.raises(DecodeError, match=r"checksum|bytes too many"):
                decode(bytes(damaged), 4)
        for length in range(len(data)):
            with pytest.raises(DecodeError):
                decode(bytes(data[:length]), 4)


def test_more_values_than_allowed_are_refused() -> None:
    sparse, dense = torch.tensor([0.0, 1.0, 0.0, 3.0, *[0.0] * 20]), torch.ones(6)
    assert decode(encode(sparse), 24, max_nonzeros=2).equal(sparse)
    with pytest.raises(DecodeError, match="2 values where at most 1"):
        decode(encode(sparse), 24, max_nonzeros=1)
    with pytest.raises(DecodeError, match="beyond the 5 that were expected"):
        decode(encode(dense, Grid(1.0)), 6, max_nonzeros=5, known=Known(step=1.0))
    with pytest.raises(DecodeError, match="6 values are not zero where 5"):
        decode(plain(dense), 6, max_nonzeros=5)
    long = top_k(torch.randn(50_000), 0.1)
    with pytest.raises(DecodeError, match="5000 values where at most 4999"):
        decode(encode(torch.round(long / STEP) * STEP + 0.0, Grid(STEP)), 50_000, 4999, Known(step=STEP))


@pytest.mark.parametrize(
    ("head", "places"),
    [("03 28", ""), ("09 28", "ff ff ff ff ff 00 00 00"), ("84 00 00 04 00 09", ""), ("84 00 00 03 28", "00")],
    ids=["gaps", "planes", "planes of numbers", "gaps of numbers"],
)
def test_an_inflate_bomb_is_refused_before_it_unfolds(head: str, places: str) -> None:
    """Of 64 entries there are 40, or all."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = stream.compress(bytes(200 << 20)) + stream.flush()
    body = bytes.fromhex(head) + varint(len(bomb)) + bytes.fromhex(places) + bomb
    data = sealed(body + bytes(3 * 40))  # the other planes
    tracemalloc.start()
    with pytest.raises(DecodeError, match="more than the expected"):
        decode(data, 64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("is_many", [False, True])
def test_no_mutation_crashes_the_decoder_or_takes_much_memory(is_many: bool, request: pytest.FixtureRequest) -> None:
    """Half of the mutated inputs get a checksum that is right again, so that they reach what is behind it."""
    if is_many:
        request.getfixturevalue("many_soon")
    _mutate(SOME, 5)


@pytest.mark.slow
@pytest.mark.parametrize("is_many", [False, True])
def test_no_mutation_of_fifty_thousand_does(is_many: bool, request: pytest.FixtureRequest) -> None:
    if is_many:
        request.getfixturevalue("many_soon")
    _mutate(MUTATIONS // 2, 15)


def _mutate(mutations: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    refused = accepted = 0
    worst = 0.0
    while refused + accepted < mutations:
        drawn = draw(generator)
        data = drawn.encoded()
        for _ in range(20):
            size = len(drawn.vector)
            if drawn.given is None and generator.random() < 0.1:
                size = int(generator.integers(0, 5000))
            damaged = mutated(data, size, generator)
            try:
                back = drawn.decoded(damaged, size)
                assert back.shape == (size,)
                assert bool(back.isfinite().all())
                accepted += 1
            except DecodeError:
                refused += 1
            if generator.random() < 0.05:
                worst = max(worst, _peak_bytes(drawn, damaged, size) / (4 * size + len(damaged) + 10_000))
    assert refused > 0.7 * mutations
    assert accepted > mutations // 500, "a repaired checksum over changed values is valid"
    assert worst < 10


def _peak_bytes(drawn: Drawn, data: bytes, size: int) -> int:
    """Return what decoding takes at its peak; of three times the least, as other threads may take something too."""
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        with suppress(DecodeError):
            drawn.decoded(data, size)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(peaks)


@given(st.binary(max_size=60), st.integers(0, 20))
def test_no_bytes_make_the_decoder_fail_otherwise(data: bytes, size: int) -> None:
    try:
        vector = decode(sealed(data, size), size)
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
    assert len(encode(vector.to(torch.bfloat16).float(), BFLOAT16)) <= bound + 28 * 2 + 16 < 28 * 4
    assert len(encode(torch.zeros(281), Grid(1.0), entries_of(torch.ones(281)))) <= 8


def test_entries_are_the_vector() -> None:
    vector = torch.tensor([0.0, 5.0, 0.0, 0.0, -1.0] + [0.0] * 30)
    entries = decode_entries(encode(vector), 35)
    assert entries.places is not None
    assert entries.places.tolist() == [1, 4]
    assert entries.values.tolist() == [5.0, -1.0]
    assert entries.dense().equal(vector)
