"""Many whole numbers, given the vector that both sides have: sections that are Huffman-coded, at memory speed.

Which known entries stay is written group by group, from the largest magnitudes down; the numbers follow in the same
order, with tables of their own wherever there are enough. The layout is in vector.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.codec.bytestream import Reader, Section, deflate, inflate, varint
from common.codec.change import CLASSES, Change, Known
from common.codec.places import WAYS, Bits, Way, places_in, read_places
from common.codec.planes import is_worth_it
from common.codec.scales import Numbers, Scale, Units
from common.errors import DecodeError
from common.vectors.entries import Places

MOST_PLANES = 5  # bytes of a number
FEWEST_IN_GROUP = 256  # known entries that are worth a set of their own
FEWEST_IN_TABLE = 2048  # numbers that are worth Huffman tables of their own
_WAY, _COMPLEMENT = 3, 4
_PLANE_COUNT, _PLANES_BITS = 7, 3

Plane = NDArray[np.uint8]


def encode_many(change: Change, known: Known) -> list[Section]:
    """Write a change."""
    groups, stays = _groups(known), _mask(change.stay, known.places.size)
    in_groups = [places_in(stays.take(group)) for group in groups]
    order = _order(stays, groups, in_groups)
    in_groups.append(change.ranks)
    blocks = [_set(members, size) for members, size in zip(in_groups, _sizes(groups, known), strict=True)]
    numbers = _zigzag(_reordered(change.numbers, order))
    blocks += [_table(numbers[part]) for part in _parts([members.size for members in in_groups])]
    if change.beside is not None:
        blocks.append(_Block(b"", [(_zigzag(_reordered(change.beside, order)).astype(np.uint8), True)]))
    return _written(blocks)


def decode_many(reader: Reader, known: Known, scale: Scale, most: int) -> Change:
    """Read a change, which may leave so many values at most."""
    groups = _groups(known)
    sets = [_SetForm(reader, size) for size in _sizes(groups, known)]
    counts = [one.members for one in sets]
    if sum(counts) > most:
        raise DecodeError(f"{sum(counts)} values where at most {most} were expected")
    tables = [_TableForm(reader, part.stop - part.start) for part in _parts(counts)]
    beside_bytes = reader.varint("the length of a plane") if isinstance(scale, Units) else None
    *in_groups, ranks = [one.read(reader) for one in sets]
    stays = _mask(_chosen(groups, in_groups), known.places.size)
    order = _order(stays, groups, in_groups)
    numbers = _put_back(_zigzag_back(np.concatenate([table.read(reader) for table in tables])), order)
    beside = None
    if beside_bytes is not None:
        beside = _put_back(_zigzag_back(_plane(reader, beside_bytes, sum(counts)).astype(np.int64)), order)
    return Change(places_in(stays), ranks, numbers, beside)


def joined(counts: Sequence[int], fewest: int) -> list[slice]:
    """Return neighbours that are at least so many together; all, where there are fewer."""
    parts, start = [], 0
    for end in range(1, len(counts) + 1):
        if end == len(counts) or min(sum(counts[start:end]), sum(counts[end:])) >= fewest:
            parts.append(slice(start, end))
            start = end
    return parts


def _groups(known: Known) -> list[Places]:
    """Return which of the known entries belong together, from the largest down."""
    counts = np.bincount(known.classes, minlength=CLASSES).tolist()
    parts = joined(counts, FEWEST_IN_GROUP)
    if len(parts) == 1:
        return [np.arange(known.places.size, dtype=np.int32)]
    group_of_class = np.repeat(np.arange(len(parts), dtype=np.uint8), [part.stop - part.start for part in parts])
    groups = group_of_class.take(known.classes)
    return [places_in(groups == number) for number in range(len(parts))]


def _parts(counts: Sequence[int]) -> list[slice]:
    """Return which of the numbers share tables."""
    ends = np.cumsum([0, *counts]).tolist()
    return [slice(ends[part.start], ends[part.stop]) for part in joined(counts, FEWEST_IN_TABLE)]


def _sizes(groups: Sequence[Places], known: Known) -> list[int]:
    """Return of how many each set is: of the groups, and of all places that are not known."""
    return [*(group.size for group in groups), known.others]


def _chosen(groups: Sequence[Places], in_groups: Sequence[Places]) -> Places:
    """Return which of the known entries are in the sets of their groups, group by group."""
    return np.concatenate([group.take(members) for group, members in zip(groups, in_groups, strict=True)])


def _mask(members: Places, size: int) -> Bits:
    mask = np.zeros(size, np.bool_)
    mask[members] = True
    return mask


def _order(stays: Bits, groups: Sequence[Places], in_groups: Sequence[Places]) -> Places:
    """Return which of those that stay is written first, which next, and so on."""
    ranks = np.cumsum(stays, dtype=np.int32)
    return ranks.take(_chosen(groups, in_groups)) - np.int32(1)


def _reordered(numbers: Numbers, order: Places) -> Numbers:
    return np.concatenate([numbers.take(order), numbers[order.size :]])


def _put_back(numbers: Numbers, order: Places) -> Numbers:
    result = numbers.copy()
    result[order] = numbers[: order.size]
    return result


@dataclass(frozen=True)
class _Block:
    """What is written of a set, or of numbers: a head, the lengths of sections that are coded, the sections."""

    head: bytes
    sections: list[tuple[Section, bool]]  # and whether it is to be Huffman-coded


def _written(blocks: list[_Block]) -> list[Section]:
    """Return all heads, then all sections."""
    coded = iter(deflate([section for block in blocks for section, to_code in block.sections if to_code]))
    head, body = bytearray(), list[Section]()
    for block in blocks:
        head += block.head
        for section, to_code in block.sections:
            body.append(next(coded) if to_code else section)
            if to_code:
                head += varint(len(body[-1]))
    return [bytes(head), *body]


def _set(members: Places, size: int) -> _Block:
    """Write members or all others, whichever are fewer, in the shortest way; of none, nothing."""
    is_complement = 2 * members.size > size
    if is_complement:
        members = _complement(members, size)
    if not members.size:
        return _Block(bytes([_COMPLEMENT * is_complement, 0]), [])
    number = min(WAYS, key=lambda number: WAYS[number].size_bytes(size, members.size))
    head = bytes([number | _COMPLEMENT * is_complement]) + varint(members.size)
    return _Block(head, [(WAYS[number].encode(members, size), WAYS[number].is_huffman_coded)])


class _SetForm:
    """How a set is written."""

    def __init__(self, reader: Reader, size: int) -> None:
        form, count = reader.take(1, "the form of a set")[0], reader.varint("the number of places")
        self._way: Way | None = WAYS.get(form & _WAY)
        self._is_complement = bool(form & _COMPLEMENT)
        self._size, self._count = size, count
        if form & ~(_WAY | _COMPLEMENT):
            raise DecodeError("an unknown form of a set")
        if count > size or bool(count) != bool(self._way):
            raise DecodeError(f"{count} of {size} places")
        self.members = size - count if self._is_complement else count
        self._bytes = self._section_bytes(reader)

    def read(self, reader: Reader) -> Places:
        """Read the set."""
        written = np.empty(0, np.int32)
        if self._way:
            written = read_places(reader.take(self._bytes, "places"), self._way, self._size, self._count)
        return _complement(written, self._size) if self._is_complement else written

    def _section_bytes(self, reader: Reader) -> int:
        if self._way is None:
            return 0
        is_told = self._way.is_huffman_coded
        return reader.varint("the length of places") if is_told else self._way.size_bytes(self._size, self._count)


def _complement(members: Places, size: int) -> Places:
    return places_in(~_mask(members, size))


def _table(zigzag: Numbers) -> _Block:
    """Write the bytes of numbers, the lowest of all first."""
    width = -(-int(zigzag.max(initial=0)).bit_length() // 8)
    columns = zigzag.astype("<u8", copy=False).view(np.uint8)
    planes = [columns[place::8] for place in range(width)]
    worth_it = [is_worth_it(plane) for plane in planes]
    flags = sum(is_coded << place for place, is_coded in enumerate(worth_it))
    return _Block(bytes([width | flags << _PLANES_BITS]), list(zip(planes, worth_it, strict=True)))


class _TableForm:
    """How numbers are written."""

    def __init__(self, reader: Reader, count: int) -> None:
        form = reader.take(1, "the form of numbers")[0]
        width, coded = form & _PLANE_COUNT, form >> _PLANES_BITS
        if width > MOST_PLANES or coded >> width:
            raise DecodeError("an unknown form of numbers")
        self._count = count
        self._lengths = [
            reader.varint("the length of a plane") if coded >> place & 1 else None for place in range(width)
        ]

    def read(self, reader: Reader) -> Numbers:
        """Read the numbers."""
        zigzag = np.zeros(self._count, np.int64)
        for place, length in enumerate(self._lengths):
            zigzag |= _plane(reader, length, self._count).astype(np.int64) << 8 * place
        return zigzag


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


def _zigzag_back(zigzag: Numbers) -> Numbers:
    return zigzag >> 1 ^ -(zigzag & 1)
