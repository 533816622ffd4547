"""A step along the gradient."""

from __future__ import annotations

from torch import Tensor

from common.vectors.select_band import band_by_numpy
from common.vectors.select_long import band_pass
from common.vectors.sparsity import Expected


def descend(
    weights: Tensor, gradient: Tensor, correction: Tensor | None, learning_rate: float, expected: Expected | None = None
) -> Tensor:
    """Make w - gamma (g - h) of w; the gradient is used up. What is expected of w then may be found on the way."""
    if correction is None:
        return weights.sub_(gradient.mul_(learning_rate))
    if not _is_for_machine_code(weights, gradient, correction):
        return weights.sub_(gradient.sub_(correction).mul_(learning_rate))
    from common.vectors.descent_fast import descend_and_scan_by_numba, descend_by_numba

    if expected is None or expected.vector is not weights:
        return descend_by_numba(weights, gradient, correction, learning_rate)
    expected.found(
        descend_and_scan_by_numba(weights, gradient, correction, learning_rate, *expected.bounds, expected.out)
    )
    return weights


def _is_for_machine_code(*vectors: Tensor) -> bool:
    size = len(vectors[0])
    return band_pass(size) is not band_by_numpy and all(
        one.device.type == "cpu" and one.dim() == 1 and one.is_contiguous() for one in vectors
    )
