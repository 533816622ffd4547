"""An adaptive binary range coder: decisions to bytes and back, each at the price of how surprising it is.

A server reads the decisions of many uploads, so both directions are loops without a call. The layout is in vector.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from common.codec.symbols import PLUS, Path, Tree
from common.errors import DecodeError

_MASK = 0xFFFFFFFF
_LEAST_RANGE = 1 << 24
_FIRST_COUNT, _COUNT_STEP = 1, 5  # so the first decisions count most
_MANY_COUNTS = 1271  # from which on old ones fade
_MOST_RAW_BITS = 16  # at a time


class _Contexts:
    """How often each decision was 0, and how often it was 1."""

    __slots__ = ("ones", "zeros")

    def __init__(self, count: int) -> None:
        self.zeros, self.ones = [_FIRST_COUNT] * count, [_FIRST_COUNT] * count

    def fade(self, context: int) -> None:
        """Let old decisions count half."""
        self.zeros[context] = (self.zeros[context] + 1) >> 1
        self.ones[context] = (self.ones[context] + 1) >> 1


class RangeWriter:
    """Symbols to bytes."""

    def __init__(self, contexts: int) -> None:
        self._contexts = _Contexts(contexts)
        self._bytes = bytearray()
        self._low, self._range = 0, _MASK

    def write(self, paths: Iterable[Path]) -> None:
        """Write symbols, and learn from them."""
        zeros_of, ones_of = self._contexts.zeros, self._contexts.ones
        for decisions, raw, left in paths:
            for context, bit in decisions:
                zeros = zeros_of[context]
                both = zeros + ones_of[context]
                bound = self._range * zeros // both
                if bit:
                    self._low += bound
                    self._range -= bound
                    ones_of[context] += _COUNT_STEP
                else:
                    self._range = bound
                    zeros_of[context] += _COUNT_STEP
                if both >= _MANY_COUNTS:
                    self._contexts.fade(context)
                if self._range < _LEAST_RANGE:
                    self._shift()
            while left:
                count = min(left, _MOST_RAW_BITS)
                left -= count
                self._range >>= count
                self._low += (raw >> left & (1 << count) - 1) * self._range
                self._shift()

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
    """Bytes to symbols: any bytes give some, so what they say is to be checked by others."""

    def __init__(self, data: bytes, contexts: int) -> None:
        if data[-1:] == b"\0":
            raise DecodeError("zeros at the end that should have been left out")
        self._contexts = _Contexts(contexts)
        self._bytes = iter(data[4:])
        self._code, self._range = int.from_bytes(data[:4].ljust(4, b"\0"), "big"), _MASK

    def read(self, trees: Iterable[Tree]) -> list[Any]:
        """Read a symbol of each tree, and learn from it."""
        zeros_of, ones_of = self._contexts.zeros, self._contexts.ones
        following, code, width = self._bytes, self._code, self._range
        found = []
        for context, zero, one in trees:
            while context >= 0:
                zeros = zeros_of[context]
                both = zeros + ones_of[context]
                bound = width * zeros // both
                if code < bound:
                    width = bound
                    zeros_of[context] = zeros + _COUNT_STEP
                    chosen = zero
                else:
                    code -= bound
                    width -= bound
                    ones_of[context] += _COUNT_STEP
                    chosen = one
                if both >= _MANY_COUNTS:
                    self._contexts.fade(context)
                while width < _LEAST_RANGE:
                    code = code << 8 | next(following, 0)
                    width <<= 8
                context, zero, one = chosen
            if one:
                self._code, self._range = code, width
                raw = self._raw(one)
                code, width = self._code, self._range
                zero = zero + raw if context == PLUS else zero - raw
            found.append(zero)
        self._code, self._range = code, width
        return found

    def end(self) -> None:
        """Refuse what goes on after the last symbol."""
        if left := sum(1 for _ in self._bytes):
            raise DecodeError(f"{left} bytes too many")

    def _raw(self, left: int) -> int:
        """Read bits as they are."""
        raw = 0
        while left:
            count = min(left, _MOST_RAW_BITS)
            left -= count
            self._range >>= count
            bits = self._code // self._range
            if bits >> count:
                raise DecodeError("a stream that no writer would have written")
            raw = raw << count | bits
            self._code -= bits * self._range
            while self._range < _LEAST_RANGE:
                self._code = self._code << 8 | next(self._bytes, 0)
                self._range <<= 8
        return raw
