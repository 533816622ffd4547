"""A sum of vectors that is rounded once, at its end: the same bits in whatever order they are added."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.vectors.divergence import refuse_infinite
from common.vectors.entries import BLOCK
from common.vectors.remainder import Remainder

Floats = NDArray[np.float64]
AnyFloats = NDArray[Any]  # float32 or float64
AnyPlaces = NDArray[np.integer[Any]]


class ExactSum:
    """The exact sum of all that was added, held in float64.

    Values of float32 have 24 bits: as long as N vectors with magnitudes between `smallest` and `largest` keep
    N largest / smallest <= 2^(53 - 24), no addition in float64 is rounded, and plain ones will do. From then on what a
    rounding takes away is carried into a next vector, so that the vectors together are still the sum (Shewchuk, 1997).
    Being exact, it forgets what is added with the opposite sign as if it had never been there.
    """

    def __init__(self, size: int) -> None:
        self._count = 0  # of vectors, also of those that were taken back
        self._levels: list[Floats] = [np.zeros(size)]
        self._largest, self._smallest = 0.0, math.inf
        self._bits = 24  # of the most exact values so far

    def add(self, values: AnyFloats) -> None:
        """Add a vector."""
        self.begin()
        for start in range(0, values.size, BLOCK):
            here = slice(start, start + BLOCK)
            self.add_block(here, values[here])

    def add_at(self, places: AnyPlaces, values: AnyFloats) -> None:
        """Add a vector that is zero but for these values at these places, all of them different."""
        self.begin()
        for start in range(0, values.size, BLOCK):
            here = slice(start, start + BLOCK)
            self.add_block(places[here], values[here])

    def begin(self) -> None:
        """Say that the blocks that come next are of one vector more."""
        self._count += 1

    def add_block(self, where: slice | AnyPlaces, values: AnyFloats) -> None:
        """Add a part of a vector."""
        self._widen(values)
        if not self._is_exact():
            self._carry(values, where)
        elif isinstance(where, slice):
            self._levels[0][where] += values
        else:
            # Of these types it is several times as fast as of others, or as a sum of what is at the places.
            np.add.at(self._levels[0], where.astype(np.int64, copy=False), values.astype(np.float64))

    def add_rows(self, rows: AnyFloats) -> None:
        """Add each row of a matrix."""
        self._count += len(rows)
        self._widen(rows)
        if self._is_exact():
            self._levels[0] += rows.sum(axis=0, dtype=np.float64)
        else:
            for row in rows:
                self._carry(row, slice(None))

    def total(self) -> Floats:
        """Return the float64 that are nearest to the sum; it is used up by this."""
        levels, self._levels = self._levels, []
        # The nearest to a sum of two is their sum in float64; where it takes more than two, they are few.
        many = np.flatnonzero(np.any(levels[2:], axis=0)) if len(levels) > 2 else ()
        nearest = [math.fsum(level[place] for level in levels) for place in many]
        total = levels[0]
        if len(levels) > 1:
            total += levels[1]
        if nearest:
            total[many] = nearest
        return total

    def mean(
        self,
        count: int | NDArray[np.integer[Any]],
        dtype: type[np.floating[Any]],
        carried: Remainder | None = None,
        rest: Remainder | None = None,
    ) -> AnyFloats:
        """Return the sum divided by a number, or by one for each place, in the memory of the sum, which is used up.

        With `rest`, what the division rounds off is written there, and what earlier ones did, `carried`, is added
        first. Where the sum is zero nothing is: the mean of sparse vectors stays sparse.
        """
        total = self.total()
        size, mean = total.size, total.view(dtype)
        for start in range(0, size, BLOCK):
            end = min(start + BLOCK, size)
            exact = total[start:end]
            here = count if isinstance(count, int) else count[start:end]
            with_owed = exact + (0.0 if carried is None else carried.read(start, end))
            # Never beyond what was read, as the sum's values are no longer.
            mean[start:end] = np.where(exact == 0, exact, with_owed / np.maximum(here, 1))
            if rest is not None:
                rest.write(start, with_owed - here * mean[start:end].astype(np.float64))
        del mean  # of memory that may move now
        total.resize(-(-size * np.dtype(dtype).itemsize // total.itemsize), refcheck=False)
        return total.view(dtype)[:size]

    def _widen(self, values: AnyFloats) -> None:
        """Take into account how large and how small values are."""
        magnitude = np.abs(values)
        largest = float(magnitude.max(initial=0))
        refuse_infinite(finite=math.isfinite(largest))
        self._largest = max(self._largest, largest)
        self._bits = max(self._bits, 24 if values.itemsize == 4 else 53)
        # As unsigned integers magnitudes have the same order, and zero less one is the largest of all.
        bits: NDArray[np.unsignedinteger[Any]] = magnitude.view(f"u{values.itemsize}")
        bits -= 1
        zero = 256**values.itemsize - 1
        smallest = int(bits.min(initial=zero))
        if smallest < zero:
            self._smallest = min(self._smallest, float(np.array(smallest + 1, bits.dtype).view(values.dtype)))

    def _is_exact(self) -> bool:
        return self._count * self._largest <= 2.0 ** (53 - self._bits) * self._smallest

    def _carry(self, values: AnyFloats, places: slice | AnyPlaces) -> None:
        """Add to each level what the one before could not hold (Knuth's two-sum)."""
        rest = values.astype(np.float64)
        for level in self._levels:
            before = level[places]
            after = before + rest
            part = after - before
            rest = (before - (after - part)) + (rest - part)
            level[places] = after
            if not rest.any():
                return
        self._levels.append(np.zeros_like(self._levels[0]))
        self._levels[-1][places] = rest
