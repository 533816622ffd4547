"""What a vector changes of the one that both sides have: which entries stay and how far they move, which others come.

Whether an entry stays, and how far it moves, depends on its magnitude: so known entries are told apart by octaves. The
layout is in vector.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.codec.places import places_in
from common.codec.scales import Numbers, Scale, Values
from common.errors import DecodeError
from common.vectors.entries import Entries, Places

CLASSES = 15  # octaves of magnitude that are told apart, from the largest down
_EXPONENT = 23  # the lowest of its bits in a float32


@dataclass(frozen=True)
class Known:
    """The entries that both sides have."""

    size: int  # of the vector
    places: Places
    values: Values
    classes: NDArray[np.uint8]  # from 0: as large as the largest

    @classmethod
    def of(cls, given: Entries) -> Known:
        """Look at a vector; zeros with a sign are no entries of it."""
        places = np.arange(given.size, dtype=np.int32) if given.places is None else given.places
        values = given.values
        if not (is_entry := values != 0).all():
            places, values = places[is_entry], values[is_entry]
        return cls(given.size, places, values, _classes(values))

    @property
    def others(self) -> int:
        """Return how many places are not known."""
        return self.size - self.places.size


@dataclass(frozen=True)
class Change:
    """What is new, beside what is known."""

    stay: Places  # which of those that are known
    ranks: Places  # of those that come, among all places that are not known
    numbers: Numbers  # how far those that stay have moved from where they were expected, outwards; then what others are
    beside: Numbers | None  # how far values are beside what their numbers stand for

    @classmethod
    def of(cls, values: Values, known: Known, scale: Scale) -> Change | None:
        """Compare a vector with what is known; None where a value has no number."""
        is_entry = values.view(np.uint32) != 0
        stay = places_in(is_entry.take(known.places))
        is_entry[known.places] = False
        come = places_in(is_entry)
        del is_entry
        entries = values.take(np.concatenate([known.places.take(stay), come]))
        numbers, beside = scale.exact(entries), scale.beside(entries)
        if numbers is None:
            return None
        before, moved = known.values.take(stay), numbers[: stay.size]
        moved -= scale.near(before)
        moved *= _outwards(before)
        return cls(stay, come - np.searchsorted(known.places, come).astype(np.int32), numbers, beside)

    def entries(self, known: Known, scale: Scale) -> tuple[Places, Values]:
        """Return places in their order, and the values at them; this uses the numbers up."""
        stay, come = known.places.take(self.stay), _at_ranks(self.ranks, known.places)
        before, moved = known.values.take(self.stay), self.numbers[: stay.size]
        moved *= _outwards(before)
        moved += scale.near(before)
        if not self.numbers.all():
            raise DecodeError("an entry that is zero")
        places, values = np.concatenate([stay, come]), scale.values(self.numbers, self.beside)
        order = np.argsort(places, kind="stable")  # which finds that there are but two runs to merge
        return places.take(order), values.take(order)


def _classes(values: Values) -> NDArray[np.uint8]:
    """Return how many octaves each is below the largest, at most 14."""
    exponents = values.view(np.uint32) >> _EXPONENT & np.uint32(0xFF)
    below: NDArray[np.uint32] = exponents.max(initial=0) - exponents
    return np.minimum(below, CLASSES - 1).astype(np.uint8)


def _outwards(values: Values) -> NDArray[np.int64]:
    """Return 1 or -1 for each: the direction away from zero."""
    return 1 - 2 * (values < 0).astype(np.int64)


def _at_ranks(ranks: Places, known: Places) -> Places:
    """Return the places that have these ranks among all that are not known."""
    if not ranks.size:
        return ranks
    others_before = known - np.arange(known.size, dtype=np.int32)
    return ranks + np.searchsorted(others_before, ranks, side="right").astype(np.int32)
