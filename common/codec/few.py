"""Few whole numbers, given the vector that both sides have: each place and each number by a range coder that learns.

Whether an entry of the given vector stays, and how far it moves, depends on its magnitude: so there is a context for
each octave of it, and one for entries that were zero. The layout is in vector.py.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.codec.bytestream import Reader, Section
from common.codec.places import places_of
from common.codec.range_coder import MOST_RAW_BITS, Coder, Context, RangeReader, RangeWriter, new_context
from common.codec.scales import Numbers, Scale, Units, Values
from common.errors import DecodeError
from common.vectors.entries import Entries, Places

CLASSES = 8  # octaves of magnitude that are told apart, from the largest down
CLASSES_A_GROUP = 2  # whose numbers share their contexts
LONGEST = 34  # bits of a number


def encode_few(values: Values, given: Entries, scale: Scale) -> list[Section] | None:
    """Write the entries of a vector; None where a value has no number."""
    places = places_of(values.view(np.uint32))
    entries = values.take(places)
    numbers, beside = scale.exact(entries), scale.beside(entries)
    if numbers is None:
        return None
    writer, size = RangeWriter(), values.size
    dense_beside = None if beside is None else _dense(places, beside, size)
    _code(writer, _dense(places, numbers, size), dense_beside, _Known.of(given, scale))
    return [writer.end()]


def decode_few(reader: Reader, given: Entries, scale: Scale, most: int) -> tuple[Places, Values]:
    """Read places and values, which may be so many at most."""
    data = RangeReader(bytes(reader.take(reader.left, "numbers")))
    numbers = [0] * given.size
    beside = [0] * given.size if isinstance(scale, Units) else None
    _code(data, numbers, beside, _Known.of(given, scale))
    data.end()
    places = np.flatnonzero(numbers).astype(np.int32)
    if places.size > most:
        raise DecodeError(f"{places.size} values where at most {most} were expected")
    told = None if beside is None else np.array(beside, np.int64).take(places)
    return places, scale.values(np.array(numbers, np.int64).take(places), told)


def _dense(places: Places, numbers: Numbers, size: int) -> list[int]:
    dense = np.zeros(size, np.int64)
    dense[places] = numbers
    listed: list[int] = dense.tolist()
    return listed


@dataclass(frozen=True)
class _Known:
    """What both sides know of each place."""

    classes: list[int]  # 0: zero; 1: as large as the largest; and so on
    near: list[int]  # the number that is expected
    negative: list[bool]

    @classmethod
    def of(cls, given: Entries, scale: Scale) -> _Known:
        """Look at the given vector."""
        classes, near = np.zeros(given.size, np.int64), np.zeros(given.size, np.int64)
        negative = np.zeros(given.size, np.bool_)
        where = slice(None) if given.places is None else given.places
        classes[where] = magnitude_classes(given.values)
        near[where] = scale.near(given.values)
        negative[where] = given.values < 0
        return cls(classes.tolist(), near.tolist(), negative.tolist())


def magnitude_classes(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return how many octaves each is below the largest, from 1; 0 for zeros."""
    _, exponents = np.frexp(values)
    nonzero = values != 0
    below = exponents.max(where=nonzero, initial=-(2**10)) - exponents
    return np.where(nonzero, 1 + np.minimum(below, CLASSES - 1), 0)


def _code(coder: Coder, numbers: list[int], beside: list[int] | None, known: _Known) -> None:
    """Write the numbers, or read them in their place; those that are zero are no entries."""
    is_entry = [new_context() for _ in range(CLASSES + 1)]
    by_group = [_NumberCoder(coder) for _ in range(-(-CLASSES // CLASSES_A_GROUP) + 1)]
    coder_beside = _NumberCoder(coder)
    for place, (number, kind) in enumerate(zip(numbers, known.classes, strict=True)):
        if not coder.bit(is_entry[kind], int(number != 0)):
            continue
        group = by_group[-(-kind // CLASSES_A_GROUP)]
        if kind:
            number = known.near[place] + group.signed(number - known.near[place], known.negative[place])
        else:  # it is not zero
            number = group.nonzero(number)
        if number == 0:
            raise DecodeError("an entry that is zero")
        numbers[place] = number
        if beside is not None:
            beside[place] = coder_beside.signed(beside[place], flip=False)


class _NumberCoder:
    """Numbers of one kind: how long they are, their second bit and their sign by contexts, other bits as they are."""

    def __init__(self, coder: Coder) -> None:
        self._coder = coder
        self._is_longer: defaultdict[int, Context] = defaultdict(new_context)
        self._second_bit: defaultdict[int, Context] = defaultdict(new_context)
        self._sign = new_context()

    def signed(self, number: int, flip: bool) -> int:
        """Code any number; whether most have the sign that `flip` says is learnt."""
        magnitude = self._positive(abs(number) + 1) - 1
        return self._with_sign(magnitude, number < 0, flip) if magnitude else 0

    def nonzero(self, number: int) -> int:
        """Code a number that is not zero."""
        return self._with_sign(self._positive(abs(number)), number < 0, flip=False)

    def _with_sign(self, magnitude: int, negative: bool, flip: bool) -> int:
        is_negative = bool(self._coder.bit(self._sign, int(negative != flip))) != flip
        return -magnitude if is_negative else magnitude

    def _positive(self, number: int) -> int:
        length = number.bit_length()
        bits = 1
        while self._coder.bit(self._is_longer[bits], int(bits < length)):
            bits += 1
            if bits > LONGEST:
                raise DecodeError("a number that is too long")
        if bits == 1:
            return 1
        left = bits - 2
        value = 2 | self._coder.bit(self._second_bit[bits], number >> left & 1)
        while left:
            count = min(left, MOST_RAW_BITS)
            left -= count
            value = value << count | self._coder.raw(number >> left & (1 << count) - 1, count)
        return value
