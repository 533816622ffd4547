"""TopK on a GPU, which the host only tells what to do: nothing is looked at, copied or of a size that numbers decide.

So there can be no bounds that the host makes wider where they do not hold. `topk` over everything is exact whatever the
numbers are; it is some passes by many blocks of a GPU, where `kthvalue` is one block per row. Magnitudes order like
their bit patterns read as integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_INTEGER_OF_SAME_SIZE = {4: torch.int32, 8: torch.int64}


class OnDevice:
    """TopK from call to call; of a result that is pruned once more, as by `hybrid`, both sets are found at once."""

    def __init__(self) -> None:
        self._fewest: int | None = None  # the smallest K so far
        self._last: _Result | None = None
        self._counts: dict[int, Tensor] = {}  # the smallest K and another, where the vectors are

    def top_k(self, vector: Tensor, kept: int, out: Tensor) -> Tensor:
        """Write the K largest entries of every row to `out`, which first serves for their magnitudes.

        What is not finite counts as larger than all that is: who looks at the model once per round will see it.
        """
        last, self._last = self._last, None
        if last and kept == self._fewest and last.still_is(vector):
            return _masked(vector, last.fewest, out)
        if self._fewest is None or kept <= self._fewest:
            self._counts = self._counts if kept == self._fewest else {}
            self._fewest = kept
            return _masked(vector, _largest(vector, kept, out), out)
        fewest, keep = self._both(vector, self._fewest, kept, out)
        _masked(vector, keep, out)
        self._last = _Result(out, out._version, fewest)
        return out

    def _both(self, vector: Tensor, fewer: int, more: int, scratch: Tensor) -> Tensor:
        """Say which entries are the largest, once for fewer and once for more of them, with hardly more operators."""
        between = more - fewer
        if more not in self._counts:
            self._counts[more] = torch.arange(fewer, more + 1, between, dtype=torch.int32, device=vector.device)
        magnitude = _magnitude(vector, scratch)
        ordered = magnitude.topk(more, dim=-1).values
        thresholds = ordered[..., fewer - 1 :: between]  # that of fewer, and that of more
        return _at_least(
            magnitude, thresholds.movedim(-1, 0)[..., None], self._counts[more].view(2, *[1] * vector.dim())
        )


@dataclass(frozen=True)
class _Result:
    """The last result, and which of its entries the smallest K keeps."""

    vector: Tensor
    version: int
    fewest: Tensor

    def still_is(self, vector: Tensor) -> bool:
        return vector is self.vector and vector._version == self.version


def _largest(vector: Tensor, kept: int, scratch: Tensor) -> Tensor:
    """Say which entries of every row are the K largest."""
    magnitude = _magnitude(vector, scratch)
    threshold = magnitude.topk(kept, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
    return _at_least(magnitude, threshold, kept)


def _magnitude(vector: Tensor, out: Tensor) -> Tensor:
    return torch.abs(vector, out=out).view(_INTEGER_OF_SAME_SIZE[vector.itemsize])


def _at_least(magnitude: Tensor, threshold: Tensor, kept: int | Tensor) -> Tensor:
    """Say which entries are above the K-th of their row, or are the first of its equals while there is room."""
    threshold.clamp_(min=1)  # the least that is not zero
    above, equal = magnitude > threshold, magnitude == threshold
    room = kept - above.sum(dim=-1, keepdim=True, dtype=torch.int32)
    return torch.where(equal, equal.cumsum(dim=-1, dtype=torch.int32) <= room, above)


def _masked(vector: Tensor, keep: Tensor, out: Tensor) -> Tensor:
    """Write what is kept, without the -0.0 that zero times a float would leave."""
    integer = _INTEGER_OF_SAME_SIZE[vector.itemsize]
    torch.mul(vector.view(integer), keep, out=out.view(integer))
    return out
