"""Few whole numbers, given the vector that both sides have: each decision by a range coder that learns.

The layout is in vector.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from common.codec.bytestream import Reader, Section
from common.codec.change import CLASSES, Change, Known
from common.codec.range_coder import MOST_RAW_BITS, Coder, RangeReader, RangeWriter, new_context
from common.codec.scales import Scale, Units
from common.errors import DecodeError

CLASSES_A_GROUP = 2  # whose numbers share their contexts
LONGEST = 34  # bits of a number


def encode_few(change: Change, known: Known) -> list[Section]:
    """Write a change."""
    writer, stays, gaps = RangeWriter(), np.zeros(known.places.size, np.int8), np.diff(change.ranks, prepend=-1) - 1
    stays[change.stay] = 1
    beside = None if change.beside is None else iter(change.beside.tolist())
    _code(writer, known, _Source(stays.tolist(), gaps.size, iter(gaps.tolist()), iter(change.numbers.tolist()), beside))
    return [writer.end()]


def decode_few(reader: Reader, known: Known, scale: Scale, most: int) -> Change:
    """Read a change, which may leave so many values at most."""
    data = RangeReader(bytes(reader.take(reader.left, "numbers")))
    unknown = repeat(0)  # a reader's coder does not look at what it is to write
    beside = unknown if isinstance(scale, Units) else None
    read = _code(data, known, _Source(unknown, 0, unknown, unknown, beside), most)
    data.end()
    ranks = np.cumsum(np.array(read.gaps, np.int64) + 1) - 1
    if ranks.size and ranks[-1] >= known.others:
        raise DecodeError("places beyond the end")
    return Change(
        stay=np.flatnonzero(read.stays).astype(np.int32),
        ranks=ranks.astype(np.int32),
        numbers=np.array(read.numbers, np.int64),
        beside=None if beside is None else np.array(read.beside, np.int64),
    )


@dataclass(frozen=True)
class _Source:
    """What is written, one after the other."""

    stays: Iterable[int]
    come: int  # how many
    gaps: Iterator[int]  # before each of them
    numbers: Iterator[int]
    beside: Iterator[int] | None


@dataclass(frozen=True)
class _Coded:
    """What was written, or read."""

    stays: list[int] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)


def _code(coder: Coder, known: Known, source: _Source, most: int | None = None) -> _Coded:
    """Write a change, or read it: then what the source has is not looked at."""
    coded = _Coded()
    is_stay = [new_context() for _ in range(CLASSES)]
    by_group = [_NumberCoder(coder) for _ in range(-(-CLASSES // CLASSES_A_GROUP))]
    come, gaps, others, beside = (_NumberCoder(coder) for _ in range(4))

    def told(number: int) -> None:
        coded.numbers.append(number)
        if most is not None and len(coded.numbers) > most:
            raise DecodeError(f"values beyond the {most} that were expected at most")
        if source.beside:
            coded.beside.append(beside.signed(next(source.beside)))

    for kind, stay in zip(known.classes.tolist(), source.stays, strict=False):
        coded.stays.append(coder.bit(is_stay[kind], stay))
        if coded.stays[-1]:
            told(by_group[kind // CLASSES_A_GROUP].signed(next(source.numbers)))
    count = come.positive(source.come + 1) - 1
    if count > known.others:
        raise DecodeError(f"{count} of {known.others} places")
    low_bits = (known.others // count).bit_length() - 1 if count else 0  # of a gap, which are as good as random
    for _ in range(count):
        coded.gaps.append(gaps.coarse(next(source.gaps), low_bits))
        told(others.nonzero(next(source.numbers)))
    return coded


class _NumberCoder:
    """Numbers of one kind: how long they are, their second bit and their sign by contexts, other bits as they are."""

    def __init__(self, coder: Coder) -> None:
        self._coder = coder
        self._is_longer = [new_context()]
        self._second_bit = [new_context()]
        self._sign = new_context()

    def signed(self, number: int) -> int:
        """Code any number."""
        magnitude = self.positive(abs(number) + 1) - 1
        return self._with_sign(magnitude, number) if magnitude else 0

    def nonzero(self, number: int) -> int:
        """Code a number that is not zero."""
        return self._with_sign(self.positive(abs(number)), number)

    def positive(self, number: int) -> int:
        """Code a number from 1."""
        bits = self._bits(number.bit_length())
        if bits == 1:
            return 1
        left = bits - 2
        value = 2 | self._coder.bit(self._second_bit[bits], number >> left & 1)
        return self._with_low(value, number, left)

    def coarse(self, number: int, low_bits: int) -> int:
        """Code a number from 0 whose low bits are as good as random."""
        return self._with_low(self.positive((number >> low_bits) + 1) - 1, number, low_bits)

    def _with_low(self, value: int, number: int, left: int) -> int:
        """Code the bits that are left of a number."""
        while left:
            count = min(left, MOST_RAW_BITS)
            left -= count
            value = value << count | self._coder.raw(number >> left & (1 << count) - 1, count)
        return value

    def _with_sign(self, magnitude: int, number: int) -> int:
        return -magnitude if self._coder.bit(self._sign, int(number < 0)) else magnitude

    def _bits(self, length: int) -> int:
        """Code how long a number is."""
        bits = 1
        while True:
            if len(self._is_longer) == bits:
                self._is_longer.append(new_context())
                self._second_bit.append(new_context())
            if not self._coder.bit(self._is_longer[bits], int(bits < length)):
                return bits
            bits += 1
            if bits > LONGEST:
                raise DecodeError("a number that is too long")
