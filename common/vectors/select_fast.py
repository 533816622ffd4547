"""The pass of `select_band` as machine code, by numba: the extra `fast`.

Small blocks are counted without a branch, many entries at a time; the few that hold one between the bounds are read
again while they are in the cache. Clients can be threads of one process, where numba's own threads are not safe: these
here are Python's, whose lock the machine code does not need.

Who imports this module waits until the machine code is made, which takes a second or two, or is read from where an
earlier process has left it: in `__pycache__` here, in the user's cache where that cannot be written to.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from common.vectors.divergence import refuse_infinite
from common.vectors.select_band import GREATEST_MAGNITUDE, Band, Indices, Vector, band_by_numpy

Bits = NDArray[np.int32]
Scan = Callable[[Bits, np.int32, np.int32, Indices], tuple[int, int, int, int]]

BLOCK = 128  # entries
LEAST_PART = 1 << 19  # entries for which another thread is worth its start
ROOM = 1 / 16  # for what is between the bounds, as a fraction of all entries
MAGNITUDE_BITS = np.int32(0x7FFFFFFF)  # all but the sign; read as integers, they order like the numbers


def band_by_numba(values: Vector, low: float, high: float) -> Band:
    """Return the band, from a vector of finite numbers alone, with as many threads as torch may use."""
    bits = values.view(np.int32)
    lowest, highest, greatest = np.array([low, high, GREATEST_MAGNITUDE], np.float32).view(np.int32)

    def scanned(start: int, stop: int) -> tuple[int, int, Indices]:
        places = np.empty(int(ROOM * (stop - start)) + BLOCK, np.int64)
        above, at_least, found, largest = _scan(bits[start:stop], lowest, highest, places)
        refuse_infinite(finite=largest <= greatest)
        return above, at_least, places[:found] + start

    threads = max(1, min(torch.get_num_threads(), bits.size // LEAST_PART))
    edges = [bits.size * part // threads for part in range(threads + 1)]
    if threads == 1:
        parts = [scanned(*edges)]
    else:
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(scanned, edges[:-1], edges[1:]))
    above, at_least, found = zip(*parts, strict=True)
    places = np.concatenate(found)
    if places.size < sum(at_least) - sum(above):  # there was no room for all
        return band_by_numpy(values, low, high)
    return Band(sum(above), places, values.take(places))


def _compiled(scan: Scan) -> Scan:
    signature = "UniTuple(int64, 4)(int32[::1], int32, int32, int64[::1])"
    try:
        made: Scan = numba.njit(signature, nogil=True, cache=True)(scan)
    except (OSError, RuntimeError):  # there is nowhere to leave it for the next process
        made = numba.njit(signature, nogil=True)(scan)
    return made


@_compiled
def _scan(bits: Bits, low: np.int32, high: np.int32, places: Indices) -> tuple[int, int, int, int]:
    """Count what is above `high` and what is at least `low`, and write down the places of what is between.

    Return these counts, how many places were written while there was room, and the largest magnitude. Only sums of 32
    bits, to which every term is brought, go through a processor's registers as many at a time as the entries do.
    """
    above = at_least = found = 0
    largest = np.int32(0)
    span = np.uint32(high - low)
    for start in range(0, bits.size, BLOCK):
        block = bits[start : start + BLOCK]
        above_here = at_least_here = np.int32(0)
        for place in range(block.size):
            magnitude = np.int32(block[place] & MAGNITUDE_BITS)
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
