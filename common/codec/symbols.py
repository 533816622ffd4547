"""What few whole numbers are coded as: trees of decisions, whose leaves say the number but for its low bits.

The layout is in vector.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

SHORT, LENGTH_BITS = 7, 5  # up to so many bits one after the other is asked for; then the length comes as a number
LONGEST = SHORT + (1 << LENGTH_BITS)  # bits of a number, without low ones that go apart
_SECOND_BIT = SHORT + (1 << LENGTH_BITS) - 1  # its contexts, by length, come after the sign's and those of the length
CONTEXTS_OF_NUMBER = _SECOND_BIT + LONGEST
PLUS, MINUS = -1, -2

# (context, what a 0 leads to, what a 1 leads to); of a leaf (PLUS or MINUS, a number, how many raw bits are to be added
# to it, or taken from it). Plain tuples, as a reader of many uploads walks through them.
Tree = tuple[int, Any, Any]
Decisions = tuple[tuple[int, int], ...]  # each with its context before it
Path = tuple[Decisions, int, int]  # then raw bits, and how many they are

_GONE: Tree = (PLUS, None, 0)


class Numbers:
    """Numbers of one kind: how long one is, its second bit, and its sign by contexts, its other bits as they are."""

    def __init__(self, first_context: int, *, less: int = 0, low_bits: int = 0, has_sign: bool = True) -> None:
        """Code the numbers from 1 less so much."""
        self._sign, self._less, self._low_bits, self._has_sign = first_context, less, low_bits, has_sign
        tree = self._long(1)
        for bits in range(SHORT, 0, -1):
            tree = first_context + bits, self._of_length(bits), tree
        self.tree: Tree = tree
        self._decisions = dict(_leaves(tree))

    def path(self, number: int) -> Path:
        """Return how a number is written."""
        magnitude = abs(number) + self._less
        raw_bits = max(magnitude.bit_length() - 2, self._low_bits)
        raw = magnitude & (1 << raw_bits) - 1
        leaf = (MINUS, number + raw, raw_bits) if number < 0 else (PLUS, number - raw, raw_bits)
        return self._decisions[leaf], raw, raw_bits

    def _long(self, before: int) -> Tree:
        """Return what follows these bits of a length, which begin with a 1 of their own."""
        if before >> LENGTH_BITS:
            return self._of_length(before - (1 << LENGTH_BITS) + SHORT + 1)
        return self._sign + SHORT + before, self._long(2 * before), self._long(2 * before + 1)

    def _of_length(self, bits: int) -> Tree:
        if bits == 1:
            return self._signed(1, self._low_bits)
        raw = bits - 2 + self._low_bits
        return self._sign + _SECOND_BIT + bits - 1, self._signed(2, raw), self._signed(3, raw)

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


def _leaves(tree: Tree, before: Decisions = ()) -> Iterator[tuple[Tree, Decisions]]:
    """Yield what a tree ends in, each with the decisions that lead to it."""
    context, zero, one = tree
    if context < 0:
        yield tree, before
        return
    yield from _leaves(zero, (*before, (context, 0)))
    yield from _leaves(one, (*before, (context, 1)))


@cache
def gaps(first_context: int, low_bits: int) -> Numbers:
    """Return the code of distances from 0 whose low bits are as good as random."""
    return Numbers(first_context, less=1 << low_bits, low_bits=low_bits, has_sign=False)
