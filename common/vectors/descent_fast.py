"""The step of `descent` as machine code, in one pass: the extra `fast`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.vectors.machine_code import compiled, fused_multiply_add, in_parts
from common.vectors.select_band import Band, Indices
from common.vectors.select_fast import Found, band_of_parts, scan

Vector = NDArray[np.float32]

STRETCH = 1 << 12  # entries that stay in the cache between the step and the scan


def descend_by_numba(weights: Tensor, gradient: Tensor, correction: Tensor, learning_rate: float) -> Tensor:
    """Do what torch does in three passes, to the bit."""
    torch.autograd.graph.increment_version(weights)
    w, g, h = (one.numpy(force=True) for one in (weights, gradient, correction))
    rate = np.float32(learning_rate)
    in_parts(w.size, lambda start, stop: _descend(w[start:stop], g[start:stop], h[start:stop], rate))
    return weights


def descend_and_scan_by_numba(
    weights: Tensor,
    gradient: Tensor,
    correction: Tensor,
    learning_rate: float,
    decay: float,
    low: float,
    high: float,
    out: Tensor,
) -> Band:
    """Do the same with so much of `out` added to the gradient first; write there what is above a band afterwards."""
    for written in (weights, out):
        torch.autograd.graph.increment_version(written)
    w, g, h, kept = (one.numpy(force=True) for one in (weights, gradient, correction, out))
    numbers = np.float32(learning_rate), np.float32(decay)
    return band_of_parts(
        w, low, high, kept, lambda p, *bounds: _descend_and_scan(w[p], g[p], h[p], *numbers, kept[p], *bounds)
    )


def torch_rounds_a_sum_once() -> bool:
    """Say whether torch is known to make a + b * c with one rounding here, as this pass does."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


@compiled("void(float32[::1], float32[::1], float32[::1], float32)")
def _descend(weights: Vector, gradient: Vector, correction: Vector, rate: np.float32) -> None:
    for place in range(weights.size):
        move = np.float32(np.float32(gradient[place] - correction[place]) * rate)
        weights[place] = np.float32(weights[place] - move)


@compiled("void(float32[::1], float32[::1], float32[::1], float32, float32[::1], float32)")
def _descend_decayed(
    weights: Vector, gradient: Vector, correction: Vector, rate: np.float32, point: Vector, decay: np.float32
) -> None:
    for place in range(weights.size):
        decayed = fused_multiply_add(decay, point[place], gradient[place])
        move = np.float32(np.float32(decayed - correction[place]) * rate)
        weights[place] = np.float32(weights[place] - move)


@compiled(
    "UniTuple(int64, 4)"
    "(float32[::1], float32[::1], float32[::1], float32, float32, float32[::1], int32, int32, int64[::1])"
)
def _descend_and_scan(
    weights: Vector,
    gradient: Vector,
    correction: Vector,
    rate: np.float32,
    decay: np.float32,
    kept: Vector,
    low: np.int32,
    high: np.int32,
    places: Indices,
) -> Found:
    above = at_least = found = largest = 0
    bits, kept_bits = weights.view(np.int32), kept.view(np.int32)
    for start in range(0, weights.size, STRETCH):
        stop = min(start + STRETCH, weights.size)
        w, g, h, out = weights[start:stop], gradient[start:stop], correction[start:stop], kept[start:stop]
        if decay:
            _descend_decayed(w, g, h, rate, out, decay)
        else:
            _descend(w, g, h, rate)
        more, at_least_here, taken, largest_here = scan(
            bits[start:stop], low, high, kept_bits[start:stop], places[found:]
        )
        places[found : found + taken] += start
        above, at_least, found = above + more, at_least + at_least_here, found + taken
        largest = max(largest, largest_here)
    return above, at_least, found, largest
