"""The pass of `select_band` as machine code: the extra `fast`.

Small blocks are counted without a branch, many entries at a time; the few that hold one between the bounds are read
again while they are in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from common.vectors.divergence import refuse_infinite
from common.vectors.machine_code import compiled, in_parts
from common.vectors.select_band import GREATEST_MAGNITUDE, Band, Indices, Vector, band_by_numpy

Bits = NDArray[np.int32]

BLOCK = 128  # entries
ROOM = 1 / 16  # for what is between the bounds, as a fraction of all entries
MAGNITUDE_BITS = np.int32(0x7FFFFFFF)  # all but the sign; read as integers, they order like the numbers


Found = tuple[int, int, int, int]  # what `scan` returns


def band_by_numba(values: Vector, low: float, high: float, out: Vector) -> Band:
    """Do what `band_by_numpy` does, with as many threads as torch may use."""
    bits, kept = values.view(np.int32), out.view(np.int32)
    return band_of_parts(
        values, low, high, out, lambda part, low, high, places: scan(bits[part], low, high, kept[part], places)
    )


def band_of_parts(
    values: Vector,
    low: float,
    high: float,
    out: Vector,
    scan_part: Callable[[slice, np.int32, np.int32, Indices], Found],
) -> Band:
    """Return the band of values of which each part is scanned by itself, between bounds given as bits."""
    lowest, highest, greatest = np.array([low, high, GREATEST_MAGNITUDE], np.float32).view(np.int32)

    def scanned(start: int, stop: int) -> tuple[int, int, Indices, int]:
        places = np.empty(int(ROOM * (stop - start)) + BLOCK, np.int64)
        above, at_least, found, largest = scan_part(slice(start, stop), lowest, highest, places)
        refuse_infinite(finite=largest <= greatest)
        return above, at_least, places[:found] + start, largest

    above, at_least, found, magnitudes = zip(*in_parts(values.size, scanned), strict=True)
    places = np.concatenate(found)
    if places.size < sum(at_least) - sum(above):  # there was no room for all
        return band_by_numpy(values, low, high, out)
    largest = np.int32(max(magnitudes)).view(np.float32)
    return Band(sum(above), places, values.take(places), float(largest))


@compiled("UniTuple(int64, 4)(int32[::1], int32, int32, int32[::1], int64[::1])")
def scan(bits: Bits, low: np.int32, high: np.int32, kept: Bits, places: Indices) -> Found:
    """Count and keep what is above `high`, count what is at least `low`, and write down the places of what is between.

    Return these counts, how many places were written while there was room, and the largest magnitude. Only sums of 32
    bits, to which every term is brought, go through a processor's registers as many at a time as the entries do.
    """
    above = at_least = found = 0
    largest = np.int32(0)
    span = np.uint32(high - low)
    for start in range(0, bits.size, BLOCK):
        block, kept_here = bits[start : start + BLOCK], kept[start : start + BLOCK]
        above_here = at_least_here = np.int32(0)
        for place in range(block.size):
            magnitude = np.int32(block[place] & MAGNITUDE_BITS)
            kept_here[place] = block[place] if magnitude > high else np.int32(0)
            above_here = np.int32(above_here + np.int32(magnitude > high))
            at_least_here = np.int32(at_least_here + np.int32(magnitude >= low))
            largest = max(largest, magnitude)
        above += int(above_here)
        at_least += int(at_least_here)
        if above_here < at_least_here and found + BLOCK <= places.size:
            free = places[found:]
            taken = 0
            for place in range(block.size):
                magnitude = np.int32(block[place] & MAGNITUDE_BITS)
                free[taken] = start + place  # kept if the next one does not overwrite it
                taken += int(np.uint32(magnitude - low) <= span)  # in one comparison: what is below wraps around
            found += taken
    return above, at_least, found, int(largest)
