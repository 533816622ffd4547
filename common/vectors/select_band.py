"""What of a long vector is above two bounds, which is kept, and what is between them, read in blocks in the cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from common.vectors.divergence import refuse_infinite

Vector = NDArray[np.float32]
Indices = NDArray[np.int64]

STRETCH = 1 << 17  # entries that are read at a time
LEAST_MAGNITUDE = float(np.finfo(np.float32).smallest_subnormal)  # what is below is zero
GREATEST_MAGNITUDE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Band:
    """How many entries are above two bounds, which are between them, and the largest magnitude where that is known."""

    above: int
    places: Indices
    values: Vector
    largest: float = math.inf


def band_by_numpy(values: Vector, low: float, high: float, out: Vector) -> Band:
    """Return the band of a vector of finite numbers alone, and write what is above it, zero elsewhere."""
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
    if high < GREATEST_MAGNITUDE:
        torch.hardshrink(torch.from_numpy(values), high, out=torch.from_numpy(out))
    else:
        out.fill(0)
    return band
