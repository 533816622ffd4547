"""Which entries of a vector are not zero: places <-> bytes, in three ways. The layout is in vector.py."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from common.codec.bytestream import inflate, memory_of
from common.errors import DecodeError
from common.vectors.entries import Entries, Places

Bits = NDArray[np.bool_]

LONG = 1 << 16
SCANNED_AT_ONCE = 1 << 20
ESCAPE = 255
HUFFMAN_OVERHEAD = 1.015  # of Huffman-coded gaps over the information in uniform places
HUFFMAN_TABLE_BYTES = 90


class Way(ABC):
    """A way to write K places out of d."""

    is_huffman_coded: ClassVar[bool] = False  # so its length does not follow from d and K, and is written

    @abstractmethod
    def size_bytes(self, size: int, count: int) -> int:
        """Return how long the bytes are; of Huffman-coded ones, about."""

    @abstractmethod
    def encode(self, places: Places, size: int) -> bytes | memoryview:
        """Write the places, to be Huffman-coded where that is said."""

    @abstractmethod
    def decode(self, data: bytes | memoryview, size: int, count: int) -> NDArray[np.integer[Any]]:
        """Read as many places as expected, not yet whether they increase and lie within the vector."""


def information_bits(size: int, count: int) -> float:
    """Return log2 of the number of ways to choose K places out of d: no code can do with less on average."""
    return (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2)


class Bitmap(Way):
    """A bit for each entry of the vector."""

    def size_bytes(self, size: int, count: int) -> int:
        """Return the length, d bits."""
        return _bytes_of(size)

    def encode(self, places: Places, size: int) -> bytes:
        """Set the bits."""
        bits = np.zeros(size, np.bool_)
        bits[places] = True
        return _packed(bits)

    def decode(self, data: bytes | memoryview, size: int, count: int) -> NDArray[np.integer[Any]]:
        """Find the bits that are set."""
        return _as_many(np.flatnonzero(_unpacked(data, size)), count)


class TwoParts(Way):
    """Low bits as they are, high bits as a mostly even staircase: small without any table (Elias and Fano)."""

    def size_bytes(self, size: int, count: int) -> int:
        """Return the length, some 2 bits a place above that of a low part."""
        return _bytes_of(self._bits(size, count))

    def encode(self, places: Places, size: int) -> bytes:
        """Write the low bits of all places, then the steps of the high ones."""
        count, low = places.size, self._low_bits(size, places.size)
        bits = np.zeros(self._bits(size, count), np.bool_)
        bits[: count * low] = (places[:, None] >> np.arange(low) & 1).ravel()
        bits[count * low + (places >> low) + np.arange(count)] = True
        return _packed(bits)

    def decode(self, data: bytes | memoryview, size: int, count: int) -> NDArray[np.integer[Any]]:
        """Put the two parts together."""
        low = self._low_bits(size, count)
        bits = _unpacked(data, self._bits(size, count))
        steps = _as_many(np.flatnonzero(bits[count * low :]), count)
        places = (steps - np.arange(count)) << low
        for bit in range(low):
            places |= bits[bit : count * low : low].astype(np.int64) << bit
        return places

    def _low_bits(self, size: int, count: int) -> int:
        return (size // count).bit_length() - 1 if count else 0

    def _bits(self, size: int, count: int) -> int:
        low = self._low_bits(size, count)
        return count * low + count + (max(0, size - 1) >> low)


class Gaps(Way):
    """Bytes that say how far it is to the next place, Huffman-coded: tables follow the density of each layer."""

    is_huffman_coded = True

    def size_bytes(self, size: int, count: int) -> int:
        """Return what uniform places take, but at least a bit each; others take less."""
        bits = max(float(count), HUFFMAN_OVERHEAD * information_bits(size, count))
        return math.ceil(bits / 8) + HUFFMAN_TABLE_BYTES

    def encode(self, places: Places, size: int) -> bytes | memoryview:
        """Write the distances, long ones with escapes before them."""
        gaps = places.copy()
        gaps[1:] -= places[:-1]
        gaps[1:] -= 1
        long = np.flatnonzero(gaps >= ESCAPE)
        escapes, gaps[long] = np.divmod(gaps[long], ESCAPE)
        coded = gaps.astype(np.uint8)
        if long.size:
            coded = np.insert(coded, np.repeat(long, escapes), ESCAPE)
        return memory_of(coded)

    def decode(self, data: bytes | memoryview, size: int, count: int) -> NDArray[np.integer[Any]]:
        """Add the distances up."""
        coded = np.frombuffer(inflate(data, count + (size - count) // ESCAPE, "gaps"), np.uint8)
        if coded.size and coded[-1] == ESCAPE:
            raise DecodeError("a last gap without its end")
        fits = ESCAPE * coded.size + count < 2**31
        places: NDArray[np.integer[Any]] = np.cumsum(coded, dtype=np.int32 if fits else np.int64)
        is_end = coded != ESCAPE
        if not is_end.all():
            places = places[is_end]
        places = _as_many(places, count)
        places += np.arange(count, dtype=places.dtype)
        return places


WAYS: dict[int, Way] = {1: Bitmap(), 2: TwoParts(), 3: Gaps()}


def places_of(vector: NDArray[Any]) -> Places:
    """Return where a vector is not zero; of a long one block by block, so that nothing large is made on the way."""
    blocks = [
        places_in(vector[start : start + SCANNED_AT_ONCE] != 0, start)
        for start in range(0, vector.size, SCANNED_AT_ONCE)
    ]
    return np.concatenate(blocks) if blocks else np.empty(0, np.int32)


def places_in(is_entry: Bits, start: int = 0) -> Places:
    """Return where a mask is set: a long one nearly twice as fast as numpy, by leaving out words that are zero."""
    if is_entry.size < LONG:
        return np.flatnonzero(is_entry).astype(np.int32) + np.int32(start)
    end = is_entry.size // 8 * 8
    words = is_entry[:end].view(np.uint64)
    used = np.flatnonzero(words != 0)
    bits = np.flatnonzero(words.take(used).view(np.bool_))
    places = (used.take(bits >> 3) << 3 | bits & 7) + start
    rest = np.flatnonzero(is_entry[end:]) + (start + end)
    return np.concatenate([places, rest], dtype=np.int32, casting="unsafe")


def entries_of(vector: Tensor) -> Entries:
    """Return a vector by its entries, those that are zero left out."""
    values = np.ascontiguousarray(vector.numpy(force=True))
    places = places_of(values.view(np.uint32))
    return Entries(size=values.size, places=places, values=values.take(places))


def read_places(data: bytes | memoryview, way: Way, size: int, count: int) -> Places:
    """Read places, and refuse them where they do not increase or lie beyond the end."""
    places = way.decode(data, size, count)
    if count and (places[-1] >= size or (places[1:] <= places[:-1]).any()):
        raise DecodeError("places that do not increase, or beyond the end")
    return places.astype(np.int32, copy=False)


def _as_many(places: NDArray[np.integer[Any]], count: int) -> NDArray[np.integer[Any]]:
    if places.size != count:
        raise DecodeError(f"{places.size} places for {count} values")
    return places


def _packed(bits: Bits) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def _unpacked(data: bytes | memoryview, count: int) -> Bits:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").view(np.bool_)
    if bits[count:].any():
        raise DecodeError("unused bits that are set")
    return bits[:count]


def _bytes_of(bits: int) -> int:
    return -(-bits // 8)
