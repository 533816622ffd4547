"""Pruning operators on flat vectors; leading dimensions are a batch, density is the fraction kept."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from common.vectors import select_long, select_rows
from common.vectors.divergence import refuse_infinite


def kept_count(density: float, size: int) -> int:
    """Return K, the number of weights that a density keeps out of `size`."""
    if not 0 < density <= 1:
        raise ValueError(f"density must be above 0 and at most 1, not {density}")
    return max(1, round(density * size))


def top_k(vector: Tensor, density: float) -> Tensor:
    """Keep the K entries of largest magnitude of every row, zero the rest; of equals, the lowest indices stay."""
    size = vector.shape[-1]
    kept = kept_count(density, size)
    if kept == size:
        return vector
    if vector.device.type != "cpu":
        return _top_k_on_device(vector, kept)
    if select_long.is_for(vector, kept):
        return select_long.top_k_of_long(vector, kept)
    return torch.from_numpy(select_rows.top_k_of_rows(vector.numpy(force=True), kept))


class WarmTopK:
    """TopK of vectors that change little from call to call: what `top_k` returns, sooner."""

    def __init__(self) -> None:
        self._rows: dict[float, select_rows.Bounds] = {}
        self._long: dict[float, select_long.Thresholds] = {}
        self._last: tuple[Tensor, int, int, NDArray[Any]] | None = None

    def __call__(self, vector: Tensor, density: float) -> Tensor:
        """Return `top_k(vector, density)`."""
        kept = kept_count(density, vector.shape[-1])
        if kept == vector.shape[-1] or vector.device.type != "cpu":
            return top_k(vector, density)
        if select_long.is_for(vector, kept):
            return self._long.setdefault(density, select_long.Thresholds()).top_k(vector, kept)
        values = vector.numpy(force=True)
        magnitude = self._magnitudes(vector, values, kept)
        bounds = self._rows.setdefault(density, select_rows.Bounds())
        keep = bounds.keep(magnitude, kept).reshape(values.shape)
        pruned = torch.from_numpy(select_rows.masked(values, keep))
        self._last = (pruned, pruned._version, kept, magnitude)
        return pruned

    def _magnitudes(self, vector: Tensor, values: NDArray[Any], kept: int) -> NDArray[Any]:
        """Return the magnitudes of a vector, or where it is our last result, those of the vector it came from.

        The K largest of the L largest are the K largest: what prunes twice in a step takes the magnitudes once.
        """
        last, self._last = self._last, None
        if last and last[0] is vector and last[1] == vector._version and last[2] >= kept:
            return last[3]
        return select_rows.magnitudes(values).reshape(-1, values.shape[-1])


def soft_threshold(vector: Tensor, threshold: float) -> Tensor:
    """Shrink every entry towards zero by `threshold`: the proximity operator of threshold * |w|_1."""
    return vector - vector.clamp(-threshold, threshold)


def density_of(vector: Tensor) -> Tensor:
    """Return the fraction of nonzero entries of every row."""
    if vector.dim() == 1:  # along a dimension, torch would make an integer of every entry first
        return torch.count_nonzero(vector) / vector.shape[-1]
    return torch.count_nonzero(vector, dim=-1) / vector.shape[-1]


def _top_k_on_device(vector: Tensor, kept: int) -> Tensor:
    refuse_infinite(finite=bool(vector.isfinite().all()))
    magnitude = vector.abs().view(torch.int32 if vector.itemsize == 4 else torch.int64)
    threshold = magnitude.kthvalue(vector.shape[-1] - kept + 1, dim=-1, keepdim=True).values
    above = magnitude > threshold
    tied = magnitude == threshold
    room = kept - above.sum(dim=-1, keepdim=True)
    return torch.where(above | (tied & (tied.cumsum(dim=-1) <= room)), vector, 0.0)
