"""A step along the gradient."""

from __future__ import annotations

from torch import Tensor

from common.vectors.select_band import band_by_numpy
from common.vectors.select_long import band_pass


def descend(weights: Tensor, gradient: Tensor, correction: Tensor | None, learning_rate: float) -> Tensor:
    """Make w - gamma (g - h) of w; the gradient is used up."""
    if correction is None:
        return weights.sub_(gradient.mul_(learning_rate))
    if _is_for_machine_code(weights, gradient, correction):
        from common.vectors.descent_fast import descend_by_numba

        return descend_by_numba(weights, gradient, correction, learning_rate)
    return weights.sub_(gradient.sub_(correction).mul_(learning_rate))


def _is_for_machine_code(*vectors: Tensor) -> bool:
    size = len(vectors[0])
    return band_pass(size) is not band_by_numpy and all(
        one.device.type == "cpu" and one.dim() == 1 and one.is_contiguous() for one in vectors
    )
