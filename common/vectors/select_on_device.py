"""TopK on a GPU, which the host only tells what to do: nothing is looked at, copied or of a size that numbers decide.

So there can be no bounds that the host makes wider where they do not hold. `topk` over everything is exact whatever the
numbers are; unsorted, it is some passes by many blocks of a GPU, where `kthvalue` is one block per row. Magnitudes
order like their bit patterns read as integers, among which a tie that finds no room is simply one less.
"""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGER_OF_SAME_SIZE = {4: torch.int32, 8: torch.int64}


def top_k_on_device(vector: Tensor, kept: int, out: Tensor) -> Tensor:
    """Write the K largest entries of every row to `out`, which first serves for their magnitudes; in 12 operators.

    What is not finite counts as larger than all that is: who looks at the model once per round will see it.
    """
    integer = _INTEGER_OF_SAME_SIZE[vector.itemsize]
    magnitude = torch.abs(vector, out=out).view(integer)
    largest = magnitude.topk(kept, dim=-1, sorted=False).values
    threshold = largest.amin(dim=-1, keepdim=True).clamp_(min=1)  # the least that is not zero
    room = (largest == threshold).sum(dim=-1, keepdim=True)
    rank = (magnitude == threshold).cumsum(dim=-1, dtype=torch.int32)
    keep = magnitude.add_(rank > room, alpha=-1) >= threshold
    torch.mul(vector.view(integer), keep, out=magnitude)  # without the -0.0 that zero times a float would leave
    return out
