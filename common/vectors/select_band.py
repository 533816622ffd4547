"""One pass over a long vector, in blocks that stay in the cache: what is above two bounds, what between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.vectors.divergence import refuse_infinite

Vector = NDArray[np.float32]
Indices = NDArray[np.int64]

STRETCH = 1 << 17  # entries that are read at a time
LEAST_MAGNITUDE = float(np.finfo(np.float32).smallest_subnormal)  # what is below is zero
GREATEST_MAGNITUDE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Band:
    """How many entries are above two bounds, and which are between them."""

    above: int
    places: Indices
    values: Vector


def band_by_numpy(values: Vector, low: float, high: float) -> Band:
    """Return the band, from a vector of finite numbers alone."""
    lowest, highest = np.float32(low), np.float32(high)
    scratch = np.empty(STRETCH, np.float32)
    above = 0
    places, taken = [], []
    for start in range(0, values.size, STRETCH):
        block = values[start : start + STRETCH]
        magnitude = np.abs(block, out=scratch[: block.size])
        between = magnitude < lowest
        np.logical_not(between, out=between)  # so that what is not a number is among them
        if high < GREATEST_MAGNITUDE:
            refuse_infinite(finite=bool(magnitude.max() <= GREATEST_MAGNITUDE))
            larger = magnitude > highest
            above += int(np.count_nonzero(larger))
            between ^= larger
        here = np.flatnonzero(between)
        taken.append(block.take(here))
        here += start
        places.append(here)
    band = Band(above, np.concatenate(places), np.concatenate(taken))
    refuse_infinite(finite=bool(np.isfinite(band.values).all()))
    return band
