"""Round values to what is uploaded; the client goes on with the rounded ones, so nothing is lost on the way.

To the nearest, what a round of few local steps changes would be rounded away again and again, and training would stall.
So a value is rounded up or down with the chance that makes it right on average. The draw depends on the round and the
place alone: it is the same on every machine, in a simulation, and when a round is repeated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.rounds.state import RoundPlan

_LOWER_HALF = 0xFFFF  # of a float32: what bfloat16 does not have


def rounded(plan: RoundPlan, vector: Tensor) -> Tensor:
    """Return the vector in the plan's precision, in its own type."""
    if plan.precision == "float32":
        return vector
    bits = vector.float().contiguous().view(torch.int32)
    lower = bits & _LOWER_HALF
    up = lower > _draws(plan.round, vector)
    return (bits - lower + up.int() * (_LOWER_HALF + 1)).view(torch.float32).to(vector.dtype)


def _draws(round_number: int, vector: Tensor) -> Tensor:
    """Return a number from 0 to 65535 for every place: a hash of round and place (the mixing steps of MurmurHash3)."""
    mixed = torch.arange(vector.shape[-1], dtype=torch.int32, device=vector.device)
    mixed = (mixed + (round_number * 40503) % (1 << 31)).mul_(-1640531535)
    mixed = (mixed ^ (mixed >> 15)).mul_(-2048144789)
    mixed = (mixed ^ (mixed >> 13)).mul_(-1028477387)
    return (mixed ^ (mixed >> 16)) & _LOWER_HALF
