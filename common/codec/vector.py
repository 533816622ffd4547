"""A vector <-> bytes: lossless, near the entropy limit, never trusting what is read.

The size d is not written: the receiver knows it, and so it does a vector of that size, where one is given: the model
that an upload started from, or the one that went down before. Numbers are little-endian, the first of a run of bits is
the lowest bit of its byte, unused bits are 0. A varint has 7 bits of a number a byte, the low ones first; the top bit
of a byte says that more follow, and the last byte is not 0 unless it is the only one. A first byte says the form:

    below 32   values by themselves
    128 and up whole numbers: bits 0-1: what they stand for (0 float32, 1 bfloat16, 2 a grid, 3 units); bit 2: many of
               them, else few; bit 3: they are given the receiver's vector g, else g is zero; bits 4-6: 0

VALUES BY THEMSELVES

    form      1 byte     bits 0-1: how places are written (0 all d of them, 1 bitmap, 2 two parts, 3 gaps)
                         bit 2: values are bfloat16, else float32; bits 3 and 4: the first and the second plane of
                         the values are Huffman-coded
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

WHOLE NUMBERS

Each entry is a whole number n that is not 0; all that are not named are 0. Of float32, n is the bits as an unsigned
number, and for a negative one -1 - (the bits without the sign); of bfloat16 the same with its 16 bits. On a grid the
value is n times the step, a power of two that the receiver knows, and |n| < 2^23. In units the value is beside a
multiple of a unit u: the float32 whose number is c more than that of the nearest to n u, which is a float64; |n| <=
2^24 and |c| <= 127. near(x) is the number of the value nearest to x: halves go to the even one on a grid (at most 2^23
- 1 steps) and in units (at most 2^24), away from zero in bfloat16; x / step and x / u are float64.

    form      1 byte
    unit      8 bytes    u, a float64 above 0; only of units
    few or many, as below

Entries of g that are not zero are known. E being the largest exponent among them (bits 23 to 30 of a float32), one of
exponent e has the class min(E - e, 14). Known entries stay or go; of one that stays m = n - near(g) is written, negated
if g is negative. Entries elsewhere come; ranks number the places that are not known, in their order, from 0.

Few, which is at most 256 entries (2048 in units) where at most 8192 are known: decisions of a range coder, and as the
checksum 2 bytes, CRC-16 (polynomial 1021, first value d mod 65536, high bits first) of everything before. For each
known place in order decide whether it stays (context: its class). If so, in a group of contexts that is half the class,
rounded down: number(|m| + 1), with the sign of m unless that is 0. Then number(k + 1) in a group of its own, where k
entries come. For each, its rank less that of the one before, less 1 (of the first the rank itself), in a group of its
own: number(floor(gap / 2^l) + 1), with the l low bits of the gap after its own last bits, l = floor(log2(places that
are not known / k)); then number(|n|) with the sign of n in a group of its own. In units number(|c| + 1) of all entries,
with the sign of c unless that is 0, come at the end in a group of their own. number(x) of b bits, at most 39: for i =
1, ... 7 decide whether b > i (context: i) until it is not; if b > 7 come the five bits of b - 8, the upper ones first
(context: those before); then the second bit of x from above if b > 1 (context: b); then the sign, where there is one, 1
if negative (context: the group's own); then the other bits, and the low ones where there are some, as raw bits: 16 at a
time, the upper ones first, and then the rest.

A context counts zeros and ones, from 1 and 1. A decision adds 5 to its count, and where the two are then more than 1275
together, both become half, rounded up. Low = 0 and range = 2^32 - 1 at first. For a decision let bound = floor(range
zeros / (zeros + ones)): for a 0 range becomes bound, for a 1 low grows and range shrinks by bound. k raw bits x: range
becomes floor(range / 2^k), low grows by x range. After each, while range < 2^24, the top byte of low is written (what
low is beyond 2^32 is carried to the bytes before), and both are shifted by 8 bits. At the end come the 4 bytes of a
number between low and low + range, with as many zeros at its end as can be; zeros at the very end of all are not
written, and a reader that needs more bytes finds zeros.

Many: sets of known entries that stay, each of a group of neighbouring classes (numbered in order of their places), and
the set of ranks that come; then the numbers of all entries, set by set. Groups begin with class 0; one ends at the
first class with which it has 256 entries or more while there are as many in the classes after it; the last ends with
class 14. In the same way neighbouring sets share a table: with 2048 numbers or more, and as many left.

    sets                 for each set 1 byte, bits 0-1: how it is written, as places above are (1, 2, 3; 0 if nothing
                         is); bit 2: what is written are all others; a varint, how many places are written; and a
                         varint, the length of gaps, if it is written so
    tables               for each table 1 byte, bits 0-2: how many bytes a number has (0 to 5), then a bit for each: it
                         is Huffman-coded; and for each that is a varint, its length
    beside    varint     the length of the last section; only of units
    sections             the sets; then for each table the lowest bytes of all its numbers, then the next, and so on; a
                         number x is written as 2 x, or as -1 - 2 x if it is negative; in units the c of all entries
                         follow in the same way as bytes that are always Huffman-coded
    checksum  4 bytes    CRC-32 of everything before

[0, 0, -2.0, 0, 0, 0] on a grid of step 1 is 82 | 8a 40 | 0b 43 by itself; given [0, 0, -3.0, 0, 0, 0] it is
8a | c8 | d1 cc.
"""

from __future__ import annotations

import binascii
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from zlib_ng import zlib_ng

from common.codec.bytestream import Bytes, Reader, Section, in_memory, size_bytes
from common.codec.change import Change
from common.codec.change import Known as KnownEntries
from common.codec.few import decode_few, encode_few
from common.codec.many import decode_many, encode_many
from common.codec.plain import encode_plain, read_plain
from common.codec.scales import BFLOAT16, FLOAT32, Grid, Scale, Units, Values
from common.errors import DecodeError
from common.vectors.entries import Blocks, Entries

# The form of whole numbers; that of values by themselves is below.
_NUMBERS = 0x80
_SCALE = 3
_MANY = 4
_GIVEN = 8
_UNIT = struct.Struct("<d")

MOST_KNOWN_OF_FEW = 8192  # a range coder takes a microsecond for three decisions
_CHECKED_BYTES = 1 << 18  # at a time


@dataclass(frozen=True)
class Encoded:
    """An encoded vector whose bytes are made part by part, as they are written somewhere."""

    size: int  # in bytes
    parts: Iterator[bytes | memoryview]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a receiver knows beforehand: the vector that another may be given, and the step of a grid."""

    given: Entries | None = None
    step: float | None = None


NOTHING = Known()


def encode(vector: Tensor, scale: Scale = FLOAT32, given: Entries | None = None) -> bytes:
    """Write a float32 vector; its values must be on the scale already; where units do not fit, it goes as it is."""
    return b"".join(encode_in_parts(vector, scale, given).parts)


def encode_in_parts(vector: Tensor, scale: Scale, given: Entries | None = None) -> Encoded:
    """Write a vector as parts that are to be joined, while it stays as it is."""
    if vector.dtype != torch.float32 or vector.dim() != 1:
        raise ValueError(f"a vector of float32 is needed, not {vector.dtype} of {vector.dim()} dimensions")
    values: Values = np.ascontiguousarray(vector.numpy(force=True))
    count = int(np.count_nonzero(values.view(np.uint32)))  # -0.0 is an entry
    form = _form_of(values.size, count, scale, given)
    if form is None:
        return _checked(encode_plain(values, count, width=2 if scale is BFLOAT16 else 4), _Checksum(0, values.size))
    known = KnownEntries.of(given or _zeros(values.size))
    change = Change.of(values, known, scale)
    if change is None and isinstance(scale, Units):
        return encode_in_parts(vector, FLOAT32, given)
    if change is None:
        raise ValueError(f"values that are not rounded to {scale}")
    sections = encode_many(change, known) if form & _MANY else encode_few(change, known)
    unit = _UNIT.pack(scale.unit) if isinstance(scale, Units) else b""
    return _checked([bytes([form]) + unit, *sections], _Checksum(form, values.size))


def decode(data: Bytes, size: int, max_nonzeros: int | None = None, known: Known = NOTHING) -> Tensor:
    """Read a vector of the given size; refuse anything that is not of the format above."""
    return decode_entries(data, size, max_nonzeros, known).dense()


def decode_entries(data: Bytes, size: int, max_nonzeros: int | None = None, known: Known = NOTHING) -> Entries:
    """Read a vector by its entries, without making room for those that are zero."""
    vector = read_vector(Reader(data), size, max_nonzeros, known)
    return vector.entries() if isinstance(vector, Blocks) else vector


def read_vector(data: Reader, size: int, max_nonzeros: int | None = None, known: Known = NOTHING) -> Entries | Blocks:
    """Read a vector by its entries; where all are given, what they are is read later, and then may be refused."""
    form = data.again().take(1, "form")[0]
    reader = _checked_body(data, _Checksum(form, size))
    most = size if max_nonzeros is None else min(size, max_nonzeros)
    return _read_numbers(reader, size, most, known) if form & _NUMBERS else read_plain(reader, size, most)


def _form_of(size: int, count: int, scale: Scale, given: Entries | None) -> int | None:
    """Return the form in which whole numbers are written; None for values by themselves."""
    if (scale is FLOAT32 or scale is BFLOAT16) and (given is None or 2 * count > size):
        return None  # nothing is known of it beforehand; or it moves everywhere, and then that is little
    form = _NUMBERS | scale.code | _GIVEN * (given is not None)
    known = given.values.size if given else 0
    return form if known <= MOST_KNOWN_OF_FEW and count <= scale.most_few else form | _MANY


def _zeros(size: int) -> Entries:
    return Entries(size=size, places=np.empty(0, np.int32), values=np.empty(0, np.float32))


def _read_numbers(reader: Reader, size: int, most: int, known: Known) -> Entries:
    """Read whole numbers, and what they stand for."""
    form = reader.take(1, "form")[0]
    if form & ~(_NUMBERS | _SCALE | _MANY | _GIVEN):
        raise DecodeError(f"an unknown form ({form})")
    if form & _GIVEN and known.given is None:
        raise DecodeError("a vector that is given another, of which nothing is known here")
    given = known.given if form & _GIVEN and known.given else _zeros(size)
    scale = _scale(form & _SCALE, reader, known)
    entries = KnownEntries.of(given)
    if form & _MANY:
        change = decode_many(reader, entries, scale, most)
    elif given.values.size > MOST_KNOWN_OF_FEW:
        raise DecodeError(f"a vector that is given {given.values.size} entries as one of few")
    else:
        change = decode_few(reader, entries, scale, min(most, scale.most_few))
    if reader.left:
        raise DecodeError(f"{reader.left} bytes too many")
    places, values = change.entries(entries, scale)
    return Entries(size=size, places=places, values=values)


def _scale(code: int, reader: Reader, known: Known) -> Scale:
    if code == Grid.code:
        if known.step is None:
            raise DecodeError("values on a grid, of which no step is known here")
        return Grid(known.step)
    if code == Units.code:
        (unit,) = _UNIT.unpack(reader.take(_UNIT.size, "a unit"))
        if not (math.isfinite(unit) and unit > 0):
            raise DecodeError("a unit that is none")
        return Units(unit)
    return BFLOAT16 if code == BFLOAT16.code else FLOAT32


class _Checksum:
    """The checksum of an encoded vector: of 2 bytes where 4 would be a tenth of all, and then of its size too."""

    def __init__(self, form: int, size: int) -> None:
        self._is_short = bool(form & _NUMBERS) and not form & _MANY
        self.bytes = 2 if self._is_short else 4
        self._sum = size & 0xFFFF if self._is_short else 0

    def add(self, part: bytes | memoryview) -> None:
        """Take bytes into account."""
        self._sum = binascii.crc_hqx(part, self._sum) if self._is_short else zlib_ng.crc32(part, self._sum)

    def digest(self) -> bytes:
        """Return it."""
        return self._sum.to_bytes(self.bytes, "little")


def _checked(sections: list[Section], checksum: _Checksum) -> Encoded:
    return Encoded(sum(map(size_bytes, sections)) + checksum.bytes, _with_checksum(sections, checksum))


def _with_checksum(sections: Iterable[Section], checksum: _Checksum) -> Iterator[bytes | memoryview]:
    for section in sections:
        for part in in_memory(section):
            checksum.add(part)
            yield part
    yield checksum.digest()


def _checked_body(data: Reader, checksum: _Checksum) -> Reader:
    if data.left <= checksum.bytes:
        raise DecodeError(f"{data.left} bytes, too short for a vector")
    body = data.section(data.left - checksum.bytes, "a vector")
    rest = body.again()
    while rest.left:
        checksum.add(rest.take(min(rest.left, _CHECKED_BYTES), "a vector"))
    if checksum.digest() != data.take(checksum.bytes, "a checksum"):
        raise DecodeError("a checksum that is wrong: the bytes were damaged")
    return body
