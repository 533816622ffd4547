"""Pruning operators on flat vectors; leading dimensions are a batch, density is the fraction kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Magnitudes order like their bit patterns read as integers, which numpy selects and masks faster than floats.
_INTEGER_OF_SAME_SIZE = {4: np.int32, 8: np.int64}
# Where more than this fraction of the rows must be selected anew in a step, trying costs more than it saves.
WORTH_TRYING = 0.5


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
    if vector.device.type == "cpu":
        return torch.from_numpy(_top_k_on_cpu(vector.numpy(force=True), kept))
    return _top_k_on_device(vector, kept)


def soft_threshold(vector: Tensor, threshold: float) -> Tensor:
    """Shrink every entry towards zero by `threshold`: the proximity operator of threshold * |w|_1."""
    return vector - vector.clamp(-threshold, threshold)


def density_of(vector: Tensor) -> Tensor:
    """Return the fraction of nonzero entries of every row."""
    return torch.count_nonzero(vector, dim=-1) / vector.shape[-1]


class WarmTopK:
    """TopK of batches of rows that change little from call to call: the same result, sooner.

    A bound that lies between the K-th and the next magnitude of a row picks the K largest by comparison alone; as long
    as it leaves exactly K it still does after a step, and only the other rows are selected anew.
    """

    def __init__(self) -> None:
        self._bounds: dict[float, NDArray[Any]] = {}
        self._too_fast: set[float] = set()

    def __call__(self, vector: Tensor, density: float) -> Tensor:
        """Return `top_k(vector, density)`."""
        kept = kept_count(density, vector.shape[-1])
        if density in self._too_fast or vector.dim() != 2 or vector.device.type != "cpu" or kept == vector.shape[-1]:
            return top_k(vector, density)
        values = vector.numpy(force=True)
        return torch.from_numpy(_masked(values, self._keep(_magnitude(values), density, kept)))

    def _keep(self, magnitude: NDArray[Any], density: float, kept: int) -> NDArray[np.bool_]:
        if density not in self._bounds:
            ordered, keep = _select(magnitude, kept)
            self._bounds[density] = _between(ordered, kept)
            return keep
        keep = magnitude > self._bounds[density]
        moved = np.flatnonzero(keep.sum(axis=-1) != kept)
        if moved.size:
            ordered, keep[moved] = _select(magnitude[moved], kept)
            self._bounds[density][moved] = _between(ordered, kept)
        if moved.size > WORTH_TRYING * len(magnitude):
            self._too_fast.add(density)
        return keep


def _top_k_on_cpu(vector: NDArray[Any], kept: int) -> NDArray[Any]:
    _, keep = _select(_magnitude(vector), kept)
    return _masked(vector, keep)


def _magnitude(vector: NDArray[Any]) -> NDArray[Any]:
    magnitude: NDArray[Any] = np.abs(vector).view(_INTEGER_OF_SAME_SIZE[vector.itemsize])
    return magnitude


def _select(magnitude: NDArray[Any], kept: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the magnitudes of every row with the K largest at its end, and where these were."""
    place = magnitude.shape[-1] - kept
    ordered = np.partition(magnitude, place, axis=-1)
    threshold = ordered[..., place : place + 1]
    keep = magnitude >= threshold
    if np.count_nonzero(keep) != kept * (magnitude.size // magnitude.shape[-1]):
        tied = magnitude == threshold
        keep ^= tied
        room = kept - keep.sum(axis=-1, keepdims=True)
        keep |= tied & (np.cumsum(tied, axis=-1) <= room)
    return ordered, keep


def _between(ordered: NDArray[Any], kept: int) -> NDArray[Any]:
    """Return for every row the middle between the least magnitude that was kept and the largest that was not."""
    place = ordered.shape[-1] - kept
    below = ordered[:, :place].max(axis=-1, keepdims=True)
    middle: NDArray[Any] = below + (ordered[:, place : place + 1] - below) // 2
    return middle


def _masked(vector: NDArray[Any], keep: NDArray[np.bool_]) -> NDArray[Any]:
    pruned: NDArray[Any] = (vector.view(_INTEGER_OF_SAME_SIZE[vector.itemsize]) * keep).view(vector.dtype)
    return pruned


def _top_k_on_device(vector: Tensor, kept: int) -> Tensor:
    magnitude = vector.abs().view(torch.int32 if vector.itemsize == 4 else torch.int64)
    threshold = magnitude.kthvalue(vector.shape[-1] - kept + 1, dim=-1, keepdim=True).values
    above = magnitude > threshold
    tied = magnitude == threshold
    room = kept - above.sum(dim=-1, keepdim=True)
    return torch.where(above | (tied & (tied.cumsum(dim=-1) <= room)), vector, 0.0)
