"""What few whole numbers are coded as: trees of decisions, whose leaves say the number but for its low bits.

The layout is in vector.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

LONGEST = 34  # bits of a number, without low ones that go apart
CONTEXTS_OF_NUMBER = 2 * LONGEST  # the sign's, those of its length, those of its second bit
PLUS, MINUS = -1, -2

# (context, what a 0 leads to, what a 1 leads to); of a leaf (PLUS or MINUS, a number, how many raw bits are to be added
# to it, or taken from it). Plain tuples, as a reader of many uploads walks through them.
Tree = tuple[int, Any, Any]
Path = tuple[tuple[tuple[int, int], ...], int, int]  # (context, decision)s, then raw bits and how many they are

_OFTEN = range(-8, 9)  # numbers whose paths are at hand
_GONE: Tree = (PLUS, None, 0)


class Numbers:
    """Numbers of one kind: how long one is, its second bit, and its sign by contexts, its other bits as they are."""

    def __init__(self, first_context: int, *, less: int = 0, low_bits: int = 0, has_sign: bool = True) -> None:
        """Code the numbers from 1 less so much."""
        self._sign, self._less, self._low_bits, self._has_sign = first_context, less, low_bits, has_sign
        tree = self._of_length(LONGEST)
        for bits in range(LONGEST - 1, 0, -1):
            tree = (first_context + bits, self._of_length(bits), tree)
        self.tree: Tree = tree
        self._at_hand = {number: self._path(number) for number in _OFTEN if abs(number) + less >= 1 << low_bits}

    def path(self, number: int) -> Path:
        """Return how a number is written."""
        return self._at_hand.get(number) or self._path(number)

    def _path(self, number: int) -> Path:
        magnitude = abs(number) + self._less
        bits = magnitude.bit_length() - self._low_bits
        raw = max(0, bits - 2) + self._low_bits
        choices = [1] * (bits - 1) + [0] * (bits < LONGEST) + [magnitude >> raw & 1] * (bits > 1) + [int(number < 0)]
        tree, decisions = self.tree, list[tuple[int, int]]()
        while tree[0] >= 0:
            choice = choices[len(decisions)]
            decisions.append((tree[0], choice))
            tree = tree[2] if choice else tree[1]
        return tuple(decisions), magnitude & (1 << raw) - 1, raw

    def _of_length(self, bits: int) -> Tree:
        if bits == 1:
            return self._signed(1, self._low_bits)
        raw = bits - 2 + self._low_bits
        return self._sign + LONGEST + bits - 1, self._signed(2, raw), self._signed(3, raw)

    def _signed(self, upper: int, raw: int) -> Tree:
        least = (upper << raw) - self._less
        positive = PLUS, least, raw
        return (self._sign, positive, (MINUS, -least, raw)) if self._has_sign and least else positive


class KnownEntry:
    """Whether an entry that is known stays, and if so how far it moves; None if it goes."""

    def __init__(self, context: int, moves: Numbers) -> None:
        self.tree: Tree = (context, _GONE, moves.tree)
        self._stays, self._moves = (context, 1), moves
        self._goes: Path = ((context, 0),), 0, 0

    def path(self, move: int | None) -> Path:
        """Return how it is written."""
        if move is None:
            return self._goes
        decisions, raw, count = self._moves.path(move)
        return (self._stays, *decisions), raw, count


@cache
def gaps(first_context: int, low_bits: int) -> Numbers:
    """Return the code of distances from 0 whose low bits are as good as random."""
    return Numbers(first_context, less=1 << low_bits, low_bits=low_bits, has_sign=False)
