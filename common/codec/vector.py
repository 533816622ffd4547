"""A vector <-> bytes: lossless, near the entropy limit, never trusting what is read.

The size d is not written: the receiver knows it. Numbers are little-endian, the first of a run of bits is the lowest
bit of its byte, unused bits are 0. A varint has 7 bits of a number a byte, the low ones first; the top bit of a byte
says that more follow, and the last byte is not 0 unless it is the only one.

    form      1 byte     bits 0-1: how places are written (0 all d of them, 1 bitmap, 2 two parts, 3 gaps)
                         bit 2: values are bfloat16, else float32; bits 3 and 4: the first and the second plane of
                         the values are Huffman-coded; bits 5-7: 0
    count     varint     K, the number of values; absent if all d are written
    lengths   varints    of the gaps, of the first plane, of the second plane; each only where it is Huffman-coded
    places               which of the d entries follow, as below
    values               of K (or d) entries in order of their places; all finite, none of the K is +0.0 (-0.0 is one)
    checksum  4 bytes    CRC-32 of everything before, as in zlib and PNG

Places of K entries p_0 < ... < p_K-1:
    bitmap     d bits, set where there is an entry
    two parts  (Elias and Fano) with l = floor(log2(d / K)), or 0 if K = 0: the l low bits of each place, K l bits; then
               K + floor((d - 1) / 2^l) bits, in which bit number floor(p_i / 2^l) + i is set for each i
    gaps       p_0, and p_i - p_i-1 - 1 for the others: each as bytes of 255 while it is 255 or more, of which each
               counts 255, and a last byte below 255; all these Huffman-coded
Values:
    whole      if bits 3 and 4 are not set: one after the other, 4 bytes each (2 if bfloat16)
    planes     else: the top bytes of all values, then their second bytes, then the lower two (none if bfloat16);
               the first and the second of these planes Huffman-coded where the form says so
Huffman-coded is a raw deflate stream (RFC 1951) that ends where its section does.

[0, 0, -2.0, 0, 0, 0] in bfloat16 is 05 01 | 04 | 00 c0 | 64 75 13 2a: form 5 (bitmap, bfloat16), count 1; bit 2 of the
bitmap is set; the value is c000; the checksum is 2a137564. In two parts (form 06) the bitmap 04 would be 06: l = 2, so
the bits are 0 1, the low ones of place 2, and 1 0, as of 2 bits number 0 is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from zlib_ng import zlib_ng

from common.codec.bytestream import Bytes, Reader, Section, deflate, in_memory, size_bytes, varint
from common.codec.places import WAYS, places_of, read_places
from common.codec.planes import PLANES, estimated_bytes, read_blocks, split
from common.errors import DecodeError
from common.rounds.state import Precision
from common.vectors.entries import Blocks, Entries, joined

# The form: the number of a way to write places, or 0, and bits.
_WAY = 3
_BFLOAT16 = 4
_PLANES_SHIFT = 3
_UNUSED = 0xE0
_CHECKSUM_BYTES = 4
_CHECKED_BYTES = 1 << 18  # at a time


@dataclass(frozen=True)
class Encoded:
    """An encoded vector whose bytes are made part by part, as they are written somewhere."""

    size: int  # in bytes
    parts: Iterator[bytes | memoryview]


def encode(vector: Tensor, precision: Precision = "float32") -> bytes:
    """Write a float32 vector; for bfloat16 its values must be rounded already."""
    return b"".join(encode_in_parts(vector, precision).parts)


def encode_in_parts(vector: Tensor, precision: Precision) -> Encoded:
    """Write a vector as parts that are to be joined, while it stays as it is."""
    if vector.dtype != torch.float32 or vector.dim() != 1:
        raise ValueError(f"a vector of float32 is needed, not {vector.dtype} of {vector.dim()} dimensions")
    values: NDArray[np.float32] = np.ascontiguousarray(vector.numpy(force=True))
    size, width = values.size, 2 if precision == "bfloat16" else 4
    bits = values.view(np.uint32)  # -0.0 is an entry
    count = int(np.count_nonzero(bits))
    number = _shortest_way(size, count, width)
    sections: list[tuple[Section, bool]] = []  # and whether it is to be Huffman-coded
    if number:
        places = places_of(bits)
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
    body = [header, *(next(next_coded) if to_code else section for section, to_code in sections)]
    return Encoded(sum(map(size_bytes, body)) + _CHECKSUM_BYTES, _with_checksum(body))


def decode(data: Bytes, size: int, max_nonzeros: int | None = None) -> Tensor:
    """Read a vector of the given size; refuse anything that is not of the format above."""
    return decode_entries(data, size, max_nonzeros).dense()


def decode_entries(data: Bytes, size: int, max_nonzeros: int | None = None) -> Entries:
    """Read a vector by its entries, without making room for those that are zero."""
    vector = read_vector(Reader(data), size, max_nonzeros)
    return vector.entries() if isinstance(vector, Blocks) else vector


def read_vector(data: Reader, size: int, max_nonzeros: int | None = None) -> Entries | Blocks:
    """Read a vector by its entries; where all are given, what they are is read later, and then may be refused."""
    reader = _checked_body(data)
    form = reader.take(1, "form")[0]
    if form & _UNUSED:
        raise DecodeError(f"an unknown form ({form})")
    most = size if max_nonzeros is None else min(size, max_nonzeros)
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


def _with_checksum(sections: Iterable[Section]) -> Iterator[bytes | memoryview]:
    checksum = 0
    for section in sections:
        for part in in_memory(section):
            checksum = zlib_ng.crc32(part, checksum)
            yield part
    yield checksum.to_bytes(_CHECKSUM_BYTES, "little")


def _checked_body(data: Reader) -> Reader:
    if data.left <= _CHECKSUM_BYTES:
        raise DecodeError(f"{data.left} bytes, too short for a vector")
    body = data.section(data.left - _CHECKSUM_BYTES, "a vector")
    rest, checksum = body.again(), 0
    while rest.left:
        checksum = zlib_ng.crc32(rest.take(min(rest.left, _CHECKED_BYTES), "a vector"), checksum)
    if checksum != int.from_bytes(data.take(_CHECKSUM_BYTES, "a checksum"), "little"):
        raise DecodeError("a checksum that is wrong: the bytes were damaged")
    return body


def _counted(blocks: Iterator[NDArray[np.float32]], least: int, most: int) -> Iterator[NDArray[np.float32]]:
    """Refuse values, at their end, of which fewer or more are not zero than they may be."""
    nonzeros = 0
    for block in blocks:
        nonzeros += int(np.count_nonzero(block.view(np.uint32)))
        yield block
    if not least <= nonzeros <= most:
        raise DecodeError(f"{nonzeros} values are not zero where {most if nonzeros > most else least} were expected")
