"""Round values to what is uploaded; the client goes on with the rounded ones, so nothing is lost on the way.

To the nearest, what a round of few local steps changes would be rounded away again and again, and training would stall.
So a value is rounded up or down with the chance that makes it right on average. The draw depends on the client, the
round and the place alone: it is the same on every machine, in a simulation, and when a round is repeated; and as each
client has its own, errors average out over clients.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from common.rounds.state import RoundPlan
from common.vectors.sparsity import kept_count, top_k

LARGEST_ON_GRID = 2**23 - 1  # steps: what is beyond is clipped; float32 has them all, and half of them too
MOST_OCTAVES = 12  # below the largest value: a dense model has a smallest that says nothing
SMALLEST_EXPONENT, LARGEST_EXPONENT = -126, 100  # of a step
PART = 1 << 20  # entries at a time: what it takes to round all at once would be several models
_LOWER_HALF = 16  # bits of a float32: what bfloat16 does not have
# Statistics of a batch are a tenth off in any case: a sixteenth, right on average, is what a grid is to weights.
_BELOW_SIXTEENTHS = 19
_GRID_DRAWS = 1 << 24


def grid_step(model: Tensor, density: float, grid_bits: int) -> float | None:
    """Return a power of two so many bits below the threshold of TopK; None where a model has fewer values than that."""
    kept = top_k(model, density).abs()
    if int(torch.count_nonzero(kept)) < kept_count(density, model.shape[-1]):
        return None
    threshold = max(float(kept[kept > 0].min()), float(kept.max()) / 2**MOST_OCTAVES)
    exponent = math.frexp(threshold)[1] - 1 - grid_bits
    return 2.0**exponent if SMALLEST_EXPONENT <= exponent <= LARGEST_EXPONENT else None


def rounded(plan: RoundPlan, vector: Tensor, *, in_place: bool = False) -> Tensor:
    """Return the vector in the plan's precision, in its own type."""
    if plan.precision == "float32":
        return vector
    round_part = partial(_shortened, _LOWER_HALF) if plan.precision == "bfloat16" else _on_grid
    return _by_parts(plan, vector, round_part, vector if in_place else torch.empty_like(vector))


def rounded_statistics(plan: RoundPlan, statistics: Tensor) -> Tensor:
    """Return the statistics of BatchNorm as they are uploaded: no grid fits them, as they are of all magnitudes."""
    if plan.precision == "float32":
        return statistics
    lower_bits = _LOWER_HALF if plan.precision == "bfloat16" else _BELOW_SIXTEENTHS
    return _by_parts(plan, statistics, partial(_shortened, lower_bits), torch.empty_like(statistics))


def _by_parts(
    plan: RoundPlan, vector: Tensor, round_part: Callable[[RoundPlan, Tensor, int], Tensor], result: Tensor
) -> Tensor:
    for start in range(0, vector.shape[-1], PART):
        here = slice(start, start + PART)
        result[..., here] = round_part(plan, vector[..., here], start)
    return result


def _shortened(lower_bits: int, plan: RoundPlan, part: Tensor, start: int) -> Tensor:
    """Return floats without their lower bits."""
    unit = 1 << lower_bits
    bits = part.float().contiguous().view(torch.int32)
    lower = bits & unit - 1
    up = lower > _draws(plan, part, start) & unit - 1
    return (bits - lower + up.int() * unit).view(torch.float32)


def _on_grid(plan: RoundPlan, part: Tensor, start: int) -> Tensor:
    steps = part / plan.step
    below = steps.floor()
    up = (steps - below) * _GRID_DRAWS > _draws(plan, part, start) & _GRID_DRAWS - 1
    # + 0.0: there is no negative zero on a grid.
    return below.add_(up).clamp_(-LARGEST_ON_GRID, LARGEST_ON_GRID).mul_(plan.step).add_(0.0)


def _draws(plan: RoundPlan, part: Tensor, start: int) -> Tensor:
    """Return a number of 31 bits for every place: a hash of client, round and place (by steps of MurmurHash3)."""
    mixed = torch.arange(start, start + part.shape[-1], dtype=torch.int32, device=part.device)
    if isinstance(plan.client, int):
        mixed = mixed + _key(plan.client, plan.round)
    else:
        keys = [_key(client, plan.round) for client in plan.client]
        mixed = mixed + torch.tensor(keys, dtype=torch.int32, device=part.device).unsqueeze(-1)
    mixed.mul_(-1640531535)
    mixed = (mixed ^ (mixed >> 15)).mul_(-2048144789)
    mixed = (mixed ^ (mixed >> 13)).mul_(-1028477387)
    return (mixed ^ (mixed >> 16)) & 0x7FFFFFFF


def _key(client: int, round_number: int) -> int:
    """Return where a client's draws of a round begin, far from those of others."""
    return zlib.crc32(struct.pack("<QQ", client, round_number)) & 0x7FFFFFFF
