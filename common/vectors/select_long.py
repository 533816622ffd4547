"""TopK of one long vector near the speed of memory: read once or twice, and written once.

Two bounds, from a sample or from the last call, enclose the K-th magnitude. What is above them is kept, what is between
them is taken out; there the K-th is found exactly, and what it keeps is put in its place. Bounds that turn out
not to hold are made wider, so the result never depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from common.vectors.select_band import GREATEST_MAGNITUDE, LEAST_MAGNITUDE, Band, Vector, band_by_numpy

LONG_FROM = 1 << 16  # entries
FAST_FROM = 1 << 20  # entries for which numba is worth its memory, and the second until it is there
SAMPLE_SIZE = 1 << 15  # at most
LEAST_STRIDE = 16  # of the sample: it is a small part of a vector that is not very long, too
DEVIATIONS = 5.0  # of the sample's count, by which the bounds lie off the K-th magnitude
# How far the bounds lie off the last threshold: so many times its last move, within limits.
SAFETY, NEAREST, FARTHEST = 4.0, 0.001, 0.05
FEW = 0.02  # a fraction for which numpy sooner takes out everything that may be kept

Bounds = tuple[float, float]
BandPass = Callable[[Vector, float, float, Vector], Band]


def is_for(vector: Tensor, kept: int) -> bool:
    """Say whether this is the way to prune a vector: a long one, of which the smaller part is kept."""
    return (
        vector.dim() == 1
        and vector.dtype == torch.float32
        and vector.is_contiguous()
        and len(vector) >= max(LONG_FROM, 2 * kept)
    )


def band_pass(size: int) -> BandPass:
    """Return the pass over a vector of this size; here alone is decided whether it is machine code."""
    return band_by_numpy if size < FAST_FROM else _fastest_pass()


@cache
def _fastest_pass() -> BandPass:
    try:
        from common.vectors.select_fast import band_by_numba
    except ImportError:  # without the extra `fast`, or with a numpy that is too new for its numba
        return band_by_numpy
    return band_by_numba


class Threshold:
    """The K-th magnitude of the last call, as a start for the next."""

    def __init__(self) -> None:
        self._last = 0.0
        self._distance = FARTHEST

    def top_k(self, values: Vector, kept: int, out: Vector, band: Band | None = None) -> None:
        """Write the K largest entries, zero elsewhere; `band` is what was found between the bounds, and kept above."""
        threshold = self._near_last(values, kept, out, band)
        if threshold is None:
            threshold = _by_sample(values, kept, out)
        if self._last and threshold:
            move = abs(threshold - self._last) / threshold
            self._distance = min(FARTHEST, max(NEAREST, SAFETY * move))
        self._last = threshold

    @property
    def bounds(self) -> Bounds | None:
        """Return what probably encloses the next threshold, where there was a last one."""
        if not self._last:
            return None
        return _possible(self._last * (1 - self._distance), self._last * (1 + self._distance))

    def _near_last(self, values: Vector, kept: int, out: Vector, band: Band | None) -> float | None:
        return self.bounds and _between(values, kept, self.bounds, out, band)


def _by_sample(values: Vector, kept: int, out: Vector) -> float:
    sample = np.abs(values[:: max(LEAST_STRIDE, values.size // SAMPLE_SIZE)])
    share = kept / values.size
    expected = sample.size * share
    off = DEVIATIONS * (math.sqrt(expected * (1 - share)) + 1)
    while True:
        ranks = (sample.size - math.ceil(expected + off), sample.size - math.floor(expected - off))
        sample.partition(sorted({min(max(rank, 0), sample.size - 1) for rank in ranks}))  # once for both
        low, high = (_at(sample, rank) for rank in ranks)
        if (threshold := _between(values, kept, _possible(low, high), out)) is not None:
            return threshold
        off *= 4


def _possible(low: float, high: float) -> Bounds:
    """Return bounds that are magnitudes."""
    return min(max(low, LEAST_MAGNITUDE), GREATEST_MAGNITUDE), min(max(high, LEAST_MAGNITUDE), GREATEST_MAGNITUDE)


def _between(values: Vector, kept: int, bounds: Bounds, out: Vector, band: Band | None = None) -> float | None:
    """Write the K largest and return the K-th magnitude, or None where that is not within the bounds."""
    low, high = bounds
    if band is None:
        band_of = band_pass(values.size)
        few = band_of is band_by_numpy and kept < FEW * values.size
        band = band_of(values, low, GREATEST_MAGNITUDE if few else high, out)
    room, found = kept - band.above, band.places.size
    if room > found and low == LEAST_MAGNITUDE:  # there are not even K that are not zero
        np.add(values, 0.0, out=out)  # without any -0.0
        return 0.0
    if not 0 < room <= found:
        return None
    magnitudes = np.abs(band.values)
    threshold = _ranked(magnitudes, found - room)
    keep = magnitudes >= threshold
    if over := np.count_nonzero(keep) - room:  # of equals, the last find no room
        keep[np.flatnonzero(magnitudes == threshold)[-over:]] = False
    out[band.places[keep]] = band.values[keep]
    return threshold


def _ranked(magnitudes: Vector, rank: int) -> float:
    """Return the magnitude that has so many below it."""
    return _at(np.partition(magnitudes, rank), rank)


def _at(ordered: Vector, rank: int) -> float:
    """Return the magnitude of a rank; beyond either end, what has all or none below it."""
    if rank < 0:
        return 0.0
    return float(ordered[rank]) if rank < ordered.size else GREATEST_MAGNITUDE
