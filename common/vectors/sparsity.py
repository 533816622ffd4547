"""Pruning operators on flat vectors; leading dimensions are a batch, density is the fraction kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from common.vectors import select_long, select_rows
from common.vectors.select_band import Band
from common.vectors.select_on_device import OnDevice


def kept_count(density: float, size: int) -> int:
    """Return K, the number of weights that a density keeps out of `size`."""
    if not 0 < density <= 1:
        raise ValueError(f"density must be above 0 and at most 1, not {density}")
    return max(1, round(density * size))


def top_k(vector: Tensor, density: float, out: Tensor | None = None) -> Tensor:
    """Keep the K entries of largest magnitude of every row, zero the rest; of equals, the lowest indices stay.

    A zero is never kept: what was pruned has no -0.0, which the codec would send. The result is written to `out` where
    that is given, which may not be the vector itself; else a density of 1 returns the vector as it is.
    """
    return WarmTopK()(vector, density, out)


@dataclass(eq=False)
class Expected:
    """A TopK that may be asked for again after the next step, in which its band can be found."""

    vector: Tensor
    kept: int
    out: Tensor
    bounds: select_long.Bounds
    norm_at_most: float  # of what is in `out` now
    band: Band | None = None
    versions: tuple[int, int] = (0, 0)  # of the vectors when the band was found, and `out` written

    def __post_init__(self) -> None:
        self._written = self.out._version

    def found(self, band: Band) -> None:
        """Note the band of the vector as it is now."""
        self.band, self.versions = band, (self.vector._version, self.out._version)

    def band_for(self, vector: Tensor, kept: int, out: Tensor) -> Band | None:
        """Return the band if this was what is asked for, and nothing has changed since."""
        is_asked = vector is self.vector and out is self.out and kept == self.kept
        return self.band if is_asked and self.versions == (vector._version, out._version) else None

    def norm_at_most_of(self, result: Tensor) -> float:
        """Return it if this is the result of the last TopK, and has not been changed by this name."""
        return self.norm_at_most if result is self.out and result._version == self._written else math.inf


class WarmTopK:
    """TopK of vectors that change little from call to call: what `top_k` returns, sooner."""

    def __init__(self) -> None:
        self._rows: dict[float, select_rows.Bounds] = {}
        self._long: dict[int, select_long.Threshold] = {}
        self._on_device = OnDevice()
        self._last: tuple[Tensor, int, int, NDArray[Any]] | None = None
        self.expected: Expected | None = None  # of a long vector
        self._is_expected = True  # whatever was found on the way has been asked for

    def __call__(self, vector: Tensor, density: float, out: Tensor | None = None) -> Tensor:
        """Return `top_k(vector, density, out)`."""
        if out is vector:
            raise ValueError("TopK cannot write to the vector that it reads; give it another `out`")
        kept = kept_count(density, vector.shape[-1])
        if kept == vector.shape[-1]:
            return vector if out is None else out.copy_(vector)
        out = torch.empty_like(vector) if out is None else out
        if vector.device.type != "cpu":
            return self._on_device.top_k(vector, kept, out)
        if select_long.is_for(vector, kept):
            self._top_k_of_long(vector, kept, out)
        else:
            torch.autograd.graph.increment_version(out)  # numpy writes there, and torch should know
            magnitude = self._magnitudes(vector, kept)
            bounds = self._rows.setdefault(density, select_rows.Bounds())
            select_rows.mask(_numbers(vector), bounds.keep(magnitude, kept), _numbers(out))
            self._last = (out, out._version, kept, magnitude)
        return out

    def _top_k_of_long(self, vector: Tensor, kept: int, out: Tensor) -> None:
        threshold = self._long.setdefault(kept, select_long.Threshold())
        expected, self.expected = self.expected, None
        band = expected.band_for(vector, kept, out) if expected else None
        torch.autograd.graph.increment_version(out)
        threshold.top_k(_numbers(vector), kept, _numbers(out), band)
        if expected and expected.band and not band:
            self._is_expected = False
        if self._is_expected and threshold.bounds:
            largest = band.largest if band else math.inf
            self.expected = Expected(vector, kept, out, threshold.bounds, largest * math.sqrt(kept))

    def _magnitudes(self, vector: Tensor, kept: int) -> NDArray[Any]:
        """Return the magnitudes of a vector, or where it is our last result, those of the vector it came from.

        The K largest of the L largest are the K largest: what prunes twice in a step takes the magnitudes once.
        """
        last, self._last = self._last, None
        if last and last[0] is vector and last[1] == vector._version and last[2] >= kept:
            return last[3]
        return select_rows.magnitudes(_numbers(vector))


def _numbers(vector: Tensor) -> NDArray[Any]:
    """Return the vector's own memory to numpy."""
    return vector.numpy(force=True)


def soft_threshold(vector: Tensor, threshold: float) -> Tensor:
    """Shrink every entry towards zero by `threshold`, in place: the proximity operator of threshold * |w|_1."""
    return vector.sub_(vector.clamp(-threshold, threshold))


def density_of(vector: Tensor) -> Tensor:
    """Return the fraction of nonzero entries of every row."""
    if vector.dim() == 1:  # along a dimension, torch would make an integer of every entry first
        return torch.count_nonzero(vector) / vector.shape[-1]
    return torch.count_nonzero(vector, dim=-1) / vector.shape[-1]
