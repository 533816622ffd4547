"""The step of `descent` as machine code, in one pass: the extra `fast`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.vectors.machine_code import compiled, in_parts

Vector = NDArray[np.float32]


def descend_by_numba(weights: Tensor, gradient: Tensor, correction: Tensor, learning_rate: float) -> Tensor:
    """Do what torch does in three passes, to the bit."""
    torch.autograd.graph.increment_version(weights)
    w, g, h = (one.numpy(force=True) for one in (weights, gradient, correction))
    rate = np.float32(learning_rate)
    in_parts(w.size, lambda start, stop: _descend(w[start:stop], g[start:stop], h[start:stop], rate))
    return weights


@compiled("void(float32[::1], float32[::1], float32[::1], float32)")
def _descend(weights: Vector, gradient: Vector, correction: Vector, rate: np.float32) -> None:
    for place in range(weights.size):
        move = np.float32(np.float32(gradient[place] - correction[place]) * rate)
        weights[place] = np.float32(weights[place] - move)
