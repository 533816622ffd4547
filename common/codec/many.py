"""Many whole numbers, given the vector that both sides have: sections that are Huffman-coded, at memory speed.

Which entries of the given vector stay, which others come; then how far those that stay have moved, and what the others
are. The layout is in vector.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.codec.bytestream import Reader, Section, deflate, inflate, varint
from common.codec.places import WAYS, Way, places_in, read_places
from common.codec.planes import is_worth_it
from common.codec.scales import Numbers, Scale, Units, Values
from common.errors import DecodeError
from common.vectors.entries import Entries, Places

MOST_PLANES = 5  # bytes of a number
_WAY, _COMPLEMENT, _SET_BITS = 3, 4, 3
_PLANE_COUNT, _PLANES_BITS = 7, 3

Plane = NDArray[np.uint8]


def encode_many(values: Values, given: Entries, scale: Scale) -> list[Section] | None:
    """Write the entries of a vector; None where a value has no number."""
    known = _places(given)
    is_entry = values.view(np.uint32) != 0
    stay = places_in(is_entry.take(known))
    is_entry[known] = False
    come = places_in(is_entry)
    del is_entry
    entries = values.take(np.concatenate([known.take(stay), come]))
    numbers, beside = scale.exact(entries), scale.beside(entries)
    if numbers is None:
        return None
    numbers[: stay.size] -= scale.near(given.values.take(stay))
    planes = _planes_of(numbers)
    ranks = come - np.searchsorted(known, come).astype(np.int32)
    sets = [_Set.of(stay, known.size), _Set.of(ranks, given.size - known.size)]
    return _sections(sets, planes, [] if beside is None else [_zigzag(beside).astype(np.uint8)])


def decode_many(reader: Reader, given: Entries, scale: Scale, most: int) -> tuple[Places, Values]:
    """Read places and values, which may be so many at most."""
    forms, planes = reader.take(2, "the forms of sections")
    known = _places(given)
    sizes = known.size, given.size - known.size
    counts = [reader.varint("the number of places") for _ in sizes]
    sets = [_Form(forms >> _SET_BITS * place, size, counts[place]) for place, size in enumerate(sizes)]
    plane_count, coded = planes & _PLANE_COUNT, planes >> _PLANES_BITS
    if forms >> 2 * _SET_BITS or plane_count > MOST_PLANES or coded >> plane_count:
        raise DecodeError("an unknown form of sections")
    total = sum(one.members for one in sets)
    if total > most:
        raise DecodeError(f"{total} values where at most {most} were expected")
    set_bytes = [one.section_bytes(reader) for one in sets]
    lengths = {place: reader.varint("the length of a plane") for place in range(plane_count) if coded >> place & 1}
    beside_bytes = reader.varint("the length of a plane") if isinstance(scale, Units) else 0
    stay, ranks = (one.read(reader.take(length, "places")) for one, length in zip(sets, set_bytes, strict=True))
    numbers = _zigzag_back([_plane(reader, lengths.get(place), total) for place in range(plane_count)], total)
    beside = _zigzag_back([_plane(reader, beside_bytes, total)], total) if isinstance(scale, Units) else None
    numbers[: stay.size] += scale.near(given.values.take(stay))
    if not numbers.all():
        raise DecodeError("an entry that is zero")
    return _merged(known.take(stay), _at_ranks(ranks, known), scale.values(numbers, beside))


def _places(given: Entries) -> Places:
    return np.arange(given.size, dtype=np.int32) if given.places is None else given.places


def _sections(sets: list[_Set], planes: list[Plane], beside: list[Plane]) -> list[Section]:
    """Return what is written of all, the forms of sections and their lengths first."""
    worth_it = [is_worth_it(plane) for plane in planes]
    sections: list[tuple[Section, bool]] = [(one.section, one.is_huffman_coded) for one in sets]
    sections += [*zip(planes, worth_it, strict=True), *((plane, True) for plane in beside)]
    coded = deflate([section for section, to_code in sections if to_code])
    flags = sum(is_coded << place for place, is_coded in enumerate(worth_it))
    forms = [sum(one.form << _SET_BITS * place for place, one in enumerate(sets)), len(planes) | flags << _PLANES_BITS]
    numbers = [one.count for one in sets] + [len(section) for section in coded]
    next_coded = iter(coded)
    body = [next(next_coded) if to_code else section for section, to_code in sections]
    return [bytes(forms) + b"".join(map(varint, numbers)), *body]


@dataclass(frozen=True)
class _Set:
    """Some of so many, or all but some, as they are written."""

    form: int
    count: int
    section: Section
    is_huffman_coded: bool

    @classmethod
    def of(cls, members: Places, size: int) -> _Set:
        """Write whichever is less, members or all others, in the shortest way; of none, nothing."""
        is_complement = 2 * members.size > size
        if is_complement:
            members = _complement(members, size)
        if not members.size:
            return cls(_COMPLEMENT * is_complement, 0, b"", is_huffman_coded=False)
        number = min(WAYS, key=lambda number: WAYS[number].size_bytes(size, members.size))
        way = WAYS[number]
        form = number | _COMPLEMENT * is_complement
        return cls(form, members.size, way.encode(members, size), way.is_huffman_coded)


class _Form:
    """How a set is written."""

    def __init__(self, form: int, size: int, count: int) -> None:
        self._way: Way | None = WAYS.get(form & _WAY)
        self._is_complement = bool(form & _COMPLEMENT)
        self._size, self._count = size, count
        if count > size or bool(count) != bool(self._way):
            raise DecodeError(f"{count} of {size} places")

    @property
    def members(self) -> int:
        """Return how many there are in the set."""
        return self._size - self._count if self._is_complement else self._count

    def section_bytes(self, reader: Reader) -> int:
        """Return how long the section is, by its own number where it has one."""
        if self._way is None:
            return 0
        is_told = self._way.is_huffman_coded
        return reader.varint("the length of places") if is_told else self._way.size_bytes(self._size, self._count)

    def read(self, data: bytes | memoryview) -> Places:
        """Read the set."""
        empty = np.empty(0, np.int32)
        written = read_places(data, self._way, self._size, self._count) if self._way else empty
        return _complement(written, self._size) if self._is_complement else written


def _complement(members: Places, size: int) -> Places:
    is_other = np.ones(size, np.bool_)
    is_other[members] = False
    return places_in(is_other)


def _at_ranks(ranks: Places, known: Places) -> Places:
    """Return the places that have these ranks among all that are not known."""
    if not ranks.size:
        return ranks
    others_before = known - np.arange(known.size, dtype=np.int32)
    return ranks + np.searchsorted(others_before, ranks, side="right").astype(np.int32)


def _merged(stay: Places, come: Places, values: Values) -> tuple[Places, Values]:
    """Return places in their order, and the values at them."""
    if not (stay.size and come.size):
        return (stay if stay.size else come), values
    before = np.searchsorted(stay, come)
    return np.insert(stay, before, come), np.insert(values[: stay.size], before, values[stay.size :])


def _planes_of(numbers: Numbers) -> list[Plane]:
    """Return the bytes of numbers, the lowest of all first."""
    zigzag = _zigzag(numbers).astype("<u8")
    width = -(-int(zigzag.max(initial=0)).bit_length() // 8)
    columns = zigzag.view(np.uint8)
    return [columns[place::8] for place in range(width)]


def _plane(reader: Reader, length: int | None, count: int) -> Plane:
    data = reader.take(count if length is None else length, "a plane")
    if length is not None:
        data = inflate(data, count, "a plane")
        if len(data) != count:
            raise DecodeError(f"a plane of {len(data)} bytes for {count} values")
    return np.frombuffer(data, np.uint8)


def _zigzag(numbers: Numbers) -> Numbers:
    """Return twice each number, or for a negative one -1 less that."""
    return numbers << 1 ^ numbers >> 63


def _zigzag_back(planes: list[Plane], count: int) -> Numbers:
    zigzag = np.zeros(count, np.int64)
    for place, plane in enumerate(planes):
        zigzag |= plane.astype(np.int64) << 8 * place
    return zigzag >> 1 ^ -(zigzag & 1)
