"""An adaptive binary range coder: decisions to bytes and back, each at the price of how surprising it is.

A model is written once for both directions: the writer writes the bit that it is given and returns it, the reader
returns the bit that it reads. The layout is in vector.py.
"""

from __future__ import annotations

from typing import Protocol

from common.errors import DecodeError

_MASK = 0xFFFFFFFF
_LEAST_RANGE = 1 << 24
_FIRST_COUNT, _COUNT_STEP = 1, 5  # so the first decisions count most
_MANY_COUNTS = 1271  # from which on old ones fade
MOST_RAW_BITS = 16

Context = list[int]  # how often a decision was 0, how often it was 1


def new_context() -> Context:
    """Return the context of a decision of which nothing is known."""
    return [_FIRST_COUNT, _FIRST_COUNT]


class Coder(Protocol):
    """Either direction."""

    def bit(self, context: Context, bit: int) -> int:
        """Code a decision, and learn from it."""

    def raw(self, bits: int, count: int) -> int:
        """Code some bits, at most 16, that are as good as random."""


class RangeWriter:
    """Decisions to bytes."""

    __slots__ = ("_bytes", "_low", "_range")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._low, self._range = 0, _MASK

    def bit(self, context: Context, bit: int) -> int:
        """Write a decision, and learn from it."""
        zeros, ones = context
        bound = self._range * zeros // (zeros + ones)
        if bit:
            self._low += bound
            self._range -= bound
        else:
            self._range = bound
        if self._range < _LEAST_RANGE:
            self._shift()
        context[bit] += _COUNT_STEP
        if zeros + ones >= _MANY_COUNTS:
            _fade(context)
        return bit

    def raw(self, bits: int, count: int) -> int:
        """Write bits as they are."""
        self._range >>= count
        self._low += bits * self._range
        self._shift()
        return bits

    def end(self) -> bytes:
        """Return all bytes; zeros at the end are left out, as a reader finds zeros there anyway."""
        for kept in range(5):  # as few bytes as name a number within the range
            cut = (1 << 8 * (4 - kept)) - 1
            last = self._low + cut & ~cut
            if last < self._low + self._range:
                break
        self._low = last
        self._carry()
        return bytes(self._bytes + self._low.to_bytes(4, "big")).rstrip(b"\0")

    def _shift(self) -> None:
        self._carry()
        while self._range < _LEAST_RANGE:
            self._bytes.append(self._low >> 24)
            self._low = self._low << 8 & _MASK
            self._range <<= 8

    def _carry(self) -> None:
        if self._low > _MASK:
            self._low &= _MASK
            place = len(self._bytes) - 1
            while self._bytes[place] == 0xFF:
                self._bytes[place] = 0
                place -= 1
            self._bytes[place] += 1


class RangeReader:
    """Bytes to decisions: any bytes give some, so what they say is to be checked by others."""

    __slots__ = ("_code", "_data", "_next", "_range")

    def __init__(self, data: bytes) -> None:
        if data[-1:] == b"\0":
            raise DecodeError("zeros at the end that should have been left out")
        self._data, self._next = data, 4
        self._code, self._range = int.from_bytes(data[:4].ljust(4, b"\0"), "big"), _MASK

    def bit(self, context: Context, bit: int = 0) -> int:
        """Read a decision, and learn from it; the bit that is passed has no meaning."""
        zeros, ones = context
        bound = self._range * zeros // (zeros + ones)
        if self._code >= bound:
            bit = 1
            self._code -= bound
            self._range -= bound
        else:
            bit = 0
            self._range = bound
        if self._range < _LEAST_RANGE:
            self._shift()
        context[bit] += _COUNT_STEP
        if zeros + ones >= _MANY_COUNTS:
            _fade(context)
        return bit

    def raw(self, bits: int, count: int) -> int:
        """Read bits as they are."""
        self._range >>= count
        bits = self._code // self._range
        if bits >> count:
            raise DecodeError("a stream that no writer would have written")
        self._code -= bits * self._range
        self._shift()
        return bits

    def end(self) -> None:
        """Refuse what goes on after the last decision."""
        if self._next < len(self._data):
            raise DecodeError(f"{len(self._data) - self._next} bytes too many")

    def _shift(self) -> None:
        while self._range < _LEAST_RANGE:
            byte = self._data[self._next] if self._next < len(self._data) else 0
            self._code = (self._code << 8 | byte) & _MASK
            self._next += 1
            self._range <<= 8


def _fade(context: Context) -> None:
    context[0] = (context[0] + 1) >> 1
    context[1] = (context[1] + 1) >> 1
