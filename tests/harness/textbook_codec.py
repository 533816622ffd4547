"""A decoder written from the documentation in common/codec/vector.py alone: slow, trusting, without numpy."""

from __future__ import annotations

import binascii
import itertools
import math
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

Near = Callable[[float], int]


def book_decode(data: bytes, size: int, given: Sequence[float] | None = None, step: float = 1.0) -> list[float]:
    """Read a vector."""
    return _whole_numbers(data, given or [0.0] * size, step) if data[0] & 128 else _by_themselves(data, size)


def _by_themselves(data: bytes, size: int) -> list[float]:
    body = data[:-4]
    assert zlib.crc32(body) == int.from_bytes(data[-4:], "little")
    form, rest = body[0], body[1:]
    way, bfloat16, coded = form & 3, bool(form & 4), (bool(form & 8), bool(form & 16))
    count = size
    if way:
        count, rest = _varint(rest)
    lengths = []
    for _ in range((way == 3) + sum(coded)):
        length, rest = _varint(rest)
        lengths.append(length)
    places = list(range(size))
    if way == 1:
        places = [place for place, bit in enumerate(_bits(rest)[:size]) if bit]
        rest = rest[math.ceil(size / 8) :]
    elif way == 2:
        places, rest = _two_parts(rest, size, count)
    elif way == 3:
        length = lengths.pop(0)
        places, rest = _gaps(zlib.decompress(rest[:length], -15)), rest[length:]
    values = _values(rest, count, bfloat16, coded, lengths)
    vector = [0.0] * size
    for place, value in zip(places, values, strict=True):
        vector[place] = value
    return vector


def _varint(data: bytes) -> tuple[int, bytes]:
    number, place = 0, 0
    while True:
        number |= (data[place] & 127) << (7 * place)
        place += 1
        if data[place - 1] < 128:
            return number, data[place:]


def _bits(data: bytes) -> list[int]:
    return [byte >> place & 1 for byte in data for place in range(8)]


def _two_parts(data: bytes, size: int, count: int) -> tuple[list[int], bytes]:
    low = math.floor(math.log2(size / count)) if count else 0
    length = count * low + count + (size - 1) // 2**low
    bits = _bits(data[: math.ceil(length / 8)])
    lows = [sum(bits[number * low + bit] << bit for bit in range(low)) for number in range(count)]
    steps = [place for place, bit in enumerate(bits[count * low : length]) if bit]
    places = [(step - number << low) + lows[number] for number, step in enumerate(steps)]
    return places, data[math.ceil(length / 8) :]


def _gaps(coded: bytes) -> list[int]:
    places, place, gap = [], -1, 0
    for byte in coded:
        gap += byte
        if byte < 255:
            place += gap + 1
            places.append(place)
            gap = 0
    return places


def _values(data: bytes, count: int, bfloat16: bool, coded: tuple[bool, bool], lengths: list[int]) -> list[float]:
    if not any(coded):
        width = 2 if bfloat16 else 4
        whole = [data[width * number : width * (number + 1)] for number in range(count)]
    else:
        planes = []
        for is_coded in coded:
            length = lengths.pop(0) if is_coded else count
            planes.append(zlib.decompress(data[:length], -15) if is_coded else data[:length])
            data = data[length:]
        low = 0 if bfloat16 else 2
        whole = [
            data[low * number : low * (number + 1)] + bytes([planes[1][number], planes[0][number]])
            for number in range(count)
        ]
    return [struct.unpack("<f", bytes(4 - len(value)) + value)[0] for value in whole]


def _whole_numbers(data: bytes, given: Sequence[float], step: float) -> list[float]:
    form, is_many = data[0], bool(data[0] & 4)
    body, checksum = (data[:-4], data[-4:]) if is_many else (data[:-2], data[-2:])
    assert int.from_bytes(checksum, "little") == (zlib.crc32(body) if is_many else binascii.crc_hqx(body, len(given)))
    known = given if form & 8 else [0.0] * len(given)
    rest, unit, in_units = body[1:], 1.0, form & 3 == 3
    if in_units:
        (unit,), rest = struct.unpack("<d", rest[:8]), rest[8:]
    nears: list[Near] = [_order, _near_bfloat16, partial(_near_step, step), partial(_near_unit, unit)]
    meanings: list[Callable[[int, int], float]] = [
        lambda number, _: _of_order(number),
        lambda number, _: _of_bfloat16(number),
        lambda number, _: number * step,
        partial(_of_units, unit),
    ]
    near, value = nears[form & 3], meanings[form & 3]
    numbers = _many(rest, known, near, in_units) if is_many else _few(rest, known, near, in_units)
    return [value(number, beside) if number else 0.0 for number, beside in numbers]


def _bits_of(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _order(value: float) -> int:
    bits = _bits_of(value)
    return bits if bits < 2**31 else -1 - (bits - 2**31)


def _of_order(number: int) -> float:
    bits = number if number >= 0 else 2**31 + (-1 - number)
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _near_bfloat16(value: float) -> int:
    magnitude = (_bits_of(value) % 2**31 + 2**15) // 2**16
    return magnitude if _bits_of(value) < 2**31 else -1 - magnitude


def _of_bfloat16(number: int) -> float:
    return _of_order(number * 2**16 if number >= 0 else -1 - (-1 - number) * 2**16)


def _near_step(step: float, value: float) -> int:
    return max(-(2**23) + 1, min(2**23 - 1, round(Fraction(value) / Fraction(step))))


def _near_unit(unit: float, value: float) -> int:
    return round(max(-(2.0**24), min(2.0**24, value / unit)))


def _of_units(unit: float, number: int, beside: int) -> float:
    nearest = struct.unpack("<f", struct.pack("<f", number * unit))[0]
    return _of_order(_order(nearest) + beside)


class _RangeDecoder:
    """The decisions of few numbers: the reader's code is what the writer's low is beyond its own."""

    def __init__(self, data: bytes) -> None:
        self._bytes = itertools.chain(data, itertools.repeat(0))
        self._code = 0
        for _ in range(4):
            self._code = self._code * 256 + next(self._bytes)
        self._range = 2**32 - 1

    def decide(self, context: list[int]) -> int:
        bound = self._range * context[0] // sum(context)
        bit = int(self._code >= bound)
        self._go_on(bound * bit, self._range - bound if bit else bound)
        context[bit] += 5
        if sum(context) > 1275:
            context[:] = [(count + 1) // 2 for count in context]
        return bit

    def raw(self, count: int) -> int:
        width = self._range // 2**count
        bits: int = self._code // width
        self._go_on(bits * width, width)
        return bits

    def _go_on(self, low: int, width: int) -> None:
        self._code, self._range = self._code - low, width
        while self._range < 2**24:
            self._code = self._code * 256 + next(self._bytes)
            self._range *= 256


class _NumberDecoder:
    """The numbers of few numbers."""

    def __init__(self, data: bytes) -> None:
        self.decoder = _RangeDecoder(data)
        self.contexts: defaultdict[tuple[object, ...], list[int]] = defaultdict(lambda: [1, 1])

    def decide(self, *context: object) -> bool:
        return bool(self.decoder.decide(self.contexts[context]))

    def number(self, group: str, *, signed_from: int | None = None, low: int = 0) -> int:
        """Read a number and its low bits; of one that is as large, with its sign."""
        bits = 1
        while bits < 8 and self.decide(group, "longer", bits):
            bits += 1
        if bits == 8:
            bits += self.upper_first(group, 5)
        above, left = (1, 0) if bits == 1 else (2 + self.decide(group, "second", bits), bits - 2)
        has_sign = signed_from is not None and above * 2**left >= signed_from
        sign = -1 if has_sign and self.decide(group, "sign") else 1
        left += low
        while left:
            above, left = above * 2 ** min(16, left) + self.decoder.raw(min(16, left)), left - min(16, left)
        return sign * above

    def upper_first(self, group: str, count: int) -> int:
        above = ""
        for _ in range(count):
            above += str(int(self.decide(group, "length", above)))
        return int(above, 2)

    def signed(self, group: str) -> int:
        number = self.number(group, signed_from=2)
        return number - 1 if number > 0 else number + 1


def _classes(given: Sequence[float]) -> dict[int, int]:
    """Return the class of each known place."""
    exponents = {place: _bits_of(value) >> 23 & 255 for place, value in enumerate(given) if value}
    return {place: min(max(exponents.values()) - exponent, 14) for place, exponent in exponents.items()}


def _outwards(value: float) -> int:
    return -1 if value < 0 else 1


def _few(data: bytes, given: Sequence[float], near: Near, in_units: bool) -> list[tuple[int, int]]:
    decoder, classes, moved = _NumberDecoder(data), _classes(given), dict[int, int]()
    for place, kind in classes.items():
        if decoder.decide("stays", kind):
            moved[place] = decoder.signed(f"moved {kind // 2}")
    others = [place for place in range(len(given)) if place not in classes]
    come, rank = decoder.number("how many") - 1, -1
    low = int(math.log2(len(others) // come)) if come else 0
    for _ in range(come):
        rank += 1 + decoder.number("gap", low=low) - 2**low
        moved[others[rank]] = decoder.number("others", signed_from=1)
    numbers = [(0, 0)] * len(given)
    for place, move in moved.items():
        number = near(given[place]) + _outwards(given[place]) * move if place in classes else move
        numbers[place] = number, decoder.signed("beside") if in_units else 0
    return numbers


def _joined(counts: Sequence[int], fewest: int) -> list[list[int]]:
    """Return which neighbours go together."""
    parts: list[list[int]] = [[]]
    for place, _ in enumerate(counts):
        parts[-1].append(place)
        if sum(counts[one] for one in parts[-1]) >= fewest and sum(counts[place + 1 :]) >= fewest:
            parts.append([])
    return parts


class _Bytes:
    """Takes what comes next."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def varint(self) -> int:
        number, self.data = _varint(self.data)
        return number


def _many(data: bytes, given: Sequence[float], near: Near, in_units: bool) -> list[tuple[int, int]]:
    left, classes = _Bytes(data), _classes(given)
    counts = [list(classes.values()).count(kind) for kind in range(15)]
    universes = [[place for place, kind in classes.items() if kind in group] for group in _joined(counts, 256)]
    universes.append([place for place in range(len(given)) if place not in classes])
    sets = []
    for universe in universes:
        form, count = left.take(1)[0], left.varint()
        length = left.varint() if form & 3 == 3 else 0
        sets.append((form, count, length, len(universe) - count if form & 4 else count))
    tables = []
    for table in _joined([members for *_, members in sets], 2048):
        form = left.take(1)[0]
        lengths = [left.varint() if form >> 3 + plane & 1 else None for plane in range(form & 7)]
        tables.append((sum(sets[one][3] for one in table), lengths))
    beside_bytes = left.varint() if in_units else 0
    chosen: list[int] = []
    for universe, (form, count, length, _) in zip(universes, sets, strict=True):
        written, left.data = _set(left.data, form & 3, len(universe), count, length)
        chosen += [place for rank, place in enumerate(universe) if (rank in written) != bool(form & 4)]
    zigzag: list[int] = []
    for count, lengths in tables:
        planes = [left.take(count) if length is None else zlib.decompress(left.take(length), -15) for length in lengths]
        zigzag += [sum(plane[one] << 8 * place for place, plane in enumerate(planes)) for one in range(count)]
    beside = zlib.decompress(left.take(beside_bytes), -15) if in_units else bytes(len(chosen))
    numbers = [(0, 0)] * len(given)
    for place, written_as, c in zip(chosen, zigzag, beside, strict=True):
        moved = _unfolded(written_as)
        expected = near(given[place]) + _outwards(given[place]) * moved if place in classes else moved
        numbers[place] = expected, _unfolded(c)
    return numbers


def _unfolded(number: int) -> int:
    return number // 2 if number % 2 == 0 else -(number + 1) // 2


def _set(data: bytes, way: int, size: int, count: int, length: int) -> tuple[set[int], bytes]:
    if way == 1:
        return {place for place, bit in enumerate(_bits(data)[:size]) if bit}, data[math.ceil(size / 8) :]
    if way == 2:
        places, data = _two_parts(data, size, count)
        return set(places), data
    if way == 3:
        return set(_gaps(zlib.decompress(data[:length], -15))), data[length:]
    return set(), data
