"""TopK of many short rows at once, with numpy.

Magnitudes order like their bit patterns read as integers, which numpy selects and masks faster than floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.vectors.divergence import refuse_infinite

_INTEGER_OF_SAME_SIZE = {4: np.int32, 8: np.int64}
_INFINITY = {4: 0x7F800000, 8: 0x7FF0000000000000}  # its bit pattern: what is not finite is not below
# Where more than this fraction of the rows must be selected anew in a step, trying costs more than it saves.
WORTH_TRYING = 0.75


def magnitudes(values: NDArray[Any]) -> NDArray[Any]:
    """Return the magnitudes as integers, one row below the other."""
    magnitude: NDArray[Any] = np.abs(values).view(_INTEGER_OF_SAME_SIZE[values.itemsize])
    refuse_infinite(finite=bool(magnitude.max() < _INFINITY[values.itemsize]))
    return magnitude.reshape(-1, values.shape[-1])


def mask(values: NDArray[Any], keep: NDArray[np.bool_], out: NDArray[Any]) -> None:
    """Write the values where they are kept, zero elsewhere."""
    integer = _INTEGER_OF_SAME_SIZE[values.itemsize]
    np.multiply(values.view(integer), keep.reshape(values.shape), out=out.view(integer))


class Bounds:
    """Where the rows of the last call were cut: a start for the next.

    A bound that lies between the K-th and the next magnitude of a row picks the K largest by comparison alone; as long
    as it leaves exactly K it still does after a step, and only the other rows are selected anew.
    """

    def __init__(self) -> None:
        self._bounds: NDArray[Any] | None = None
        self._too_fast = False

    def keep(self, magnitude: NDArray[Any], kept: int) -> NDArray[np.bool_]:
        """Say which entries are the K largest of their rows."""
        if self._too_fast:
            return _select(magnitude, kept)[1]
        if self._bounds is None or len(self._bounds) != len(magnitude):
            ordered, keep = _select(magnitude, kept)
            self._bounds = _between(ordered, kept)
            return keep
        keep = magnitude > self._bounds
        moved = np.flatnonzero(keep.view(np.int8).sum(axis=-1, dtype=np.int32) != kept)
        if moved.size:
            ordered, keep[moved] = _select(magnitude[moved], kept)
            self._bounds[moved] = _between(ordered, kept)
        self._too_fast = moved.size > WORTH_TRYING * len(magnitude)
        return keep


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
        tied &= threshold > 0  # a zero is never kept
        keep |= tied & (np.cumsum(tied, axis=-1) <= room)
    return ordered, keep


def _between(ordered: NDArray[Any], kept: int) -> NDArray[Any]:
    """Return for every row the middle between the least magnitude that was kept and the largest that was not."""
    place = ordered.shape[-1] - kept
    below = ordered[:, :place].max(axis=-1, keepdims=True)
    middle: NDArray[Any] = below + (ordered[:, place : place + 1] - below) // 2
    return middle
