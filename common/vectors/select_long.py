"""TopK of one long vector near the speed of memory: read twice, in blocks that stay in the cache, and written once.

Two bounds, from a sample or from the last call, enclose the K-th magnitude. One pass counts what is above them and
takes out what is between them, where the K-th is then found exactly; a second one prunes. Bounds that turn out not to
hold are made wider, so the result never depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from common.vectors.select_band import GREATEST_MAGNITUDE, LEAST_MAGNITUDE, Band, Indices, Vector, band_by_numpy

LONG_FROM = 1 << 16  # entries
FAST_FROM = 1 << 20  # entries for which numba is worth its memory, and the second until it is there
SAMPLE_SIZE = 1 << 16  # at most
LEAST_STRIDE = 16  # of the sample: it is a small part of a vector that is not very long, too
DEVIATIONS = 5.0  # of the sample's count, by which the bounds lie off the K-th magnitude
# How far the bounds lie off the last threshold: so many times its last move, within limits.
SAFETY, NEAREST, FARTHEST = 4.0, 0.001, 0.05
FEW = 0.02  # a fraction for which numpy sooner takes out everything that may be kept

BandPass = Callable[[Vector, float, float], Band]
NOWHERE: Indices = np.empty(0, np.int64)


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

    def top_k(self, values: Vector, kept: int, out: Vector) -> None:
        """Write the K largest entries, zero elsewhere."""
        cut = self._cut_near_last(values, kept) or _cut_by_sample(values, kept)
        if self._last and cut.threshold:
            move = abs(cut.threshold - self._last) / cut.threshold
            self._distance = min(FARTHEST, max(NEAREST, SAFETY * move))
        self._last = cut.threshold
        _prune(values, cut, out)

    def _cut_near_last(self, values: Vector, kept: int) -> Cut | None:
        if not self._last:
            return None
        return _cut_between(values, kept, self._last * (1 - self._distance), self._last * (1 + self._distance))


@dataclass(frozen=True)
class Cut:
    """Which K entries to keep: those at or above a magnitude, without the last ones that equal it and find no room."""

    threshold: float
    surplus: Indices
    entries: tuple[Indices, Vector] | None = None  # the K themselves, where they are few


def _cut_by_sample(values: Vector, kept: int) -> Cut:
    sample = np.abs(values[:: max(LEAST_STRIDE, values.size // SAMPLE_SIZE)])
    share = kept / values.size
    expected = sample.size * share
    off = DEVIATIONS * (math.sqrt(expected * (1 - share)) + 1)
    while True:
        low = _ranked(sample, sample.size - math.ceil(expected + off))
        high = _ranked(sample, sample.size - math.floor(expected - off))
        if cut := _cut_between(values, kept, low, high):
            return cut
        off *= 4


def _cut_between(values: Vector, kept: int, low: float, high: float) -> Cut | None:
    """Return the exact cut, or None where the K-th magnitude is not within the bounds."""
    low, high = (min(max(bound, LEAST_MAGNITUDE), GREATEST_MAGNITUDE) for bound in (low, high))
    band_of = band_pass(values.size)
    few = band_of is band_by_numpy and kept < FEW * values.size
    band = band_of(values, low, GREATEST_MAGNITUDE if few else high)
    room, found = kept - band.above, band.places.size
    if room > found and low == LEAST_MAGNITUDE:  # there are not even K that are not zero
        return Cut(0.0, NOWHERE)
    if not 0 < room <= found:
        return None
    magnitudes = np.abs(band.values)
    threshold = _ranked(magnitudes, found - room)
    keep = magnitudes >= threshold
    if over := np.count_nonzero(keep) - room:
        tied = np.flatnonzero(magnitudes == threshold)[-over:]
        keep[tied] = False
        return Cut(threshold, band.places[tied], (band.places[keep], band.values[keep]) if few else None)
    return Cut(threshold, NOWHERE, (band.places[keep], band.values[keep]) if few else None)


def _ranked(magnitudes: Vector, rank: int) -> float:
    """Return the magnitude that has so many below it; beyond either end, what has all or none."""
    if rank < 0:
        return 0.0
    return float(np.partition(magnitudes, rank)[rank]) if rank < magnitudes.size else GREATEST_MAGNITUDE


def _prune(values: Vector, cut: Cut, out: Vector) -> None:
    if not cut.threshold:
        np.add(values, 0.0, out=out)  # without any -0.0
    elif cut.entries is None:
        below = float(np.nextafter(np.float32(cut.threshold), np.float32(0)))
        torch.hardshrink(torch.from_numpy(values), below, out=torch.from_numpy(out))
        out[cut.surplus] = 0
    else:
        places, largest = cut.entries
        out.fill(0)
        out[places] = largest
