"""TopK of one long vector near the speed of memory: read twice, in blocks that stay in the cache, and written once.

Two bounds, from a sample or from the last calls, enclose the K-th magnitude. One pass counts what is above them and
takes out what is between them, where the K-th is then found exactly; a second one prunes. Bounds that turn out not to
hold are made wider, so the result never depends on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.vectors.divergence import refuse_infinite

LONG_FROM = 1 << 18  # entries
STRETCH = 1 << 17  # entries that are read at a time: they stay in the cache
SAMPLE_SIZE = 1 << 16
DEVIATIONS = 5.0  # of the sample's count, by which the bounds lie off the K-th magnitude
# How far the bounds lie off a predicted threshold: so many times the error of the last prediction, within limits.
SAFETY, NEAREST, FARTHEST = 4.0, 0.002, 0.05
FEW = 0.02  # a fraction for which it is quicker to take out everything that may be kept
LEAST_MAGNITUDE = float(np.finfo(np.float32).smallest_subnormal)  # what is below is zero
GREATEST_MAGNITUDE = float(np.finfo(np.float32).max)

Vector = NDArray[np.float32]
Indices = NDArray[np.int64]
NOWHERE: Indices = np.empty(0, np.int64)


def is_for(vector: Tensor, kept: int) -> bool:
    """Say whether this is the way to prune a vector: a long one, of which the smaller part is kept."""
    return vector.dim() == 1 and vector.dtype == torch.float32 and len(vector) >= max(LONG_FROM, 2 * kept)


class Thresholds:
    """The K-th magnitudes of the last two calls, as a start for the next."""

    def __init__(self) -> None:
        self._last: list[float] = []
        self._distance = FARTHEST

    def top_k(self, values: Vector, kept: int, out: Vector) -> None:
        """Write the K largest entries, zero elsewhere."""
        cut = self._cut_by_prediction(values, kept) or _cut_by_sample(values, kept)
        if self._last and cut.threshold:
            error = abs(cut.threshold - self._prediction()) / cut.threshold
            self._distance = min(FARTHEST, max(NEAREST, SAFETY * error))
        self._last = [*self._last[-1:], cut.threshold]
        _prune(values, cut, out)

    def _cut_by_prediction(self, values: Vector, kept: int) -> Cut | None:
        if not self._last or self._prediction() <= 0:
            return None
        low, high = (self._prediction() * (1 + off) for off in (-self._distance, self._distance))
        return _cut_between(values, kept, low, high)

    def _prediction(self) -> float:
        """Expect it to move as it did last time."""
        return 2 * self._last[-1] - self._last[0]


@dataclass(frozen=True)
class Cut:
    """Which K entries to keep: those at or above a magnitude, without the last ones that equal it and find no room."""

    threshold: float
    surplus: Indices
    entries: tuple[Indices, Vector] | None = None  # the K themselves, where they are few


@dataclass(frozen=True)
class Band:
    """What is found in one pass: how many entries are above two bounds, and which are between them."""

    above: int
    places: Indices
    values: Vector


def _cut_by_sample(values: Vector, kept: int) -> Cut:
    sample = np.abs(values[:: values.size // SAMPLE_SIZE])
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
    few = kept < FEW * values.size
    band = _band(values, low, GREATEST_MAGNITUDE if few else high)
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


def _band(values: Vector, low: float, high: float) -> Band:
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
