"""Values by themselves, as they are but for what Huffman codes save. The layout is in vector.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from common.codec.bytestream import Reader, Section, deflate, varint
from common.codec.places import WAYS, places_of, read_places
from common.codec.planes import PLANES, estimated_bytes, read_blocks, split
from common.codec.scales import Values
from common.errors import DecodeError
from common.vectors.entries import Blocks, Entries, joined

# The form: the number of a way to write places, or 0, and bits.
_WAY = 3
_BFLOAT16 = 4
_PLANES_SHIFT = 3
_UNUSED = 0xE0


def encode_plain(values: Values, count: int, width: int) -> list[Section]:
    """Write values of 4 bytes, or of 2, as they are but for what Huffman codes save; so many are not zero."""
    size = values.size
    number = _shortest_way(size, count, width)
    sections: list[tuple[Section, bool]] = []  # and whether it is to be Huffman-coded
    if number:
        places = places_of(values.view(np.uint32))
        sections.append((WAYS[number].encode(places, size), WAYS[number].is_huffman_coded))
        values = values.take(places)
        del places
    if width == 2 and values.view(np.uint16)[::2].any():
        raise ValueError("values that are not rounded to bfloat16")
    worth_it, planes = split(values, width)
    sections += [(plane, bool(worth_it & flag)) for plane, flag in zip(planes, (*PLANES, 0), strict=False)]
    coded = deflate([section for section, to_code in sections if to_code])
    header = bytes([number | _BFLOAT16 * (width == 2) | worth_it << _PLANES_SHIFT])
    header += (varint(count) if number else b"") + b"".join(varint(len(section)) for section in coded)
    next_coded = iter(coded)
    return [header, *(next(next_coded) if to_code else section for section, to_code in sections)]


def read_plain(reader: Reader, size: int, most: int) -> Entries | Blocks:
    """Read such a vector; where all entries are given, what they are is read later, and then may be refused."""
    form = reader.take(1, "form")[0]
    if form & _UNUSED:
        raise DecodeError(f"an unknown form ({form})")
    way, coded = WAYS.get(form & _WAY), form >> _PLANES_SHIFT
    count = reader.varint("the number of values") if way else size
    if way and count > most:
        raise DecodeError(f"{count} values where at most {most} were expected")
    places_bytes = 0
    if way:
        places_bytes = reader.varint("the length of places") if way.is_huffman_coded else way.size_bytes(size, count)
    lengths = {flag: reader.varint("the length of a plane") for flag in PLANES if coded & flag}
    places = read_places(reader.take(places_bytes, "places"), way, size, count) if way else None

    def blocks(reader: Reader) -> Iterator[NDArray[np.float32]]:
        return read_blocks(reader, lengths, count, 2 if form & _BFLOAT16 else 4)

    values = reader.again()
    first = blocks(reader)
    if reader.left:
        raise DecodeError(f"{reader.left} bytes too many")
    if places is None:
        return Blocks(size=size, read=lambda: _counted(blocks(values.again()), 0, most))
    return Entries(size=size, places=places, values=joined(_counted(first, count, most), count))


def _shortest_way(size: int, count: int, width: int) -> int:
    """Return the number of the way to write places that will take least, or 0 to write all entries."""
    sizes = {way: coding.size_bytes(size, count) + estimated_bytes(count, width) for way, coding in WAYS.items()}
    sizes = {0: estimated_bytes(size, width), **sizes}
    return min(sizes, key=sizes.__getitem__)


def _counted(blocks: Iterator[NDArray[np.float32]], least: int, most: int) -> Iterator[NDArray[np.float32]]:
    """Refuse values, at their end, of which fewer or more are not zero than they may be."""
    nonzeros = 0
    for block in blocks:
        nonzeros += int(np.count_nonzero(block.view(np.uint32)))
        yield block
    if not least <= nonzeros <= most:
        raise DecodeError(f"{nonzeros} values are not zero where {most if nonzeros > most else least} were expected")
