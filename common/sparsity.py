"""Pruning operators on flat vectors; leading dimensions are a batch, density is the fraction kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Magnitudes order like their bit patterns read as integers, which numpy selects and masks faster than floats.
_INTEGER_OF_SAME_SIZE = {4: np.int32, 8: np.int64}


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


def _top_k_on_cpu(vector: NDArray[Any], kept: int) -> NDArray[Any]:
    integer = _INTEGER_OF_SAME_SIZE[vector.itemsize]
    magnitude = np.abs(vector).view(integer)
    place = vector.shape[-1] - kept
    threshold = np.partition(magnitude, place, axis=-1)[..., place : place + 1]
    keep = magnitude >= threshold
    if np.count_nonzero(keep) != kept * (vector.size // vector.shape[-1]):
        tied = magnitude == threshold
        keep ^= tied
        room = kept - keep.sum(axis=-1, keepdims=True)
        keep |= tied & (np.cumsum(tied, axis=-1) <= room)
    pruned: NDArray[Any] = (vector.view(integer) * keep).view(vector.dtype)
    return pruned


def _top_k_on_device(vector: Tensor, kept: int) -> Tensor:
    magnitude = vector.abs().view(torch.int32 if vector.itemsize == 4 else torch.int64)
    threshold = magnitude.kthvalue(vector.shape[-1] - kept + 1, dim=-1, keepdim=True).values
    above = magnitude > threshold
    tied = magnitude == threshold
    room = kept - above.sum(dim=-1, keepdim=True)
    return torch.where(above | (tied & (tied.cumsum(dim=-1) <= room)), vector, 0.0)
