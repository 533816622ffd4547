"""A step along the gradient."""

from __future__ import annotations

from torch import Tensor

from common.vectors.select_band import band_by_numpy
from common.vectors.select_long import band_pass
from common.vectors.sparsity import Expected


def descend(
    weights: Tensor,
    gradient: Tensor,
    correction: Tensor | None,
    learning_rate: float,
    expected: Expected | None = None,
    decay: float = 0.0,
) -> Tensor:
    """Make w - gamma (g - h) of w, where g is the gradient and so much of the last TopK; the gradient is used up.

    The next TopK is expected where the last one is: its band may be found on the way.
    """
    if correction is None or not _is_for_machine_code(weights, gradient, correction):
        return _by_torch(weights, _decayed(gradient, expected, decay), correction, learning_rate)
    from common.vectors.descent_fast import descend_and_scan_by_numba, descend_by_numba

    if expected is None or expected.vector is not weights:
        return descend_by_numba(weights, _decayed(gradient, expected, decay), correction, learning_rate)
    expected.found(
        descend_and_scan_by_numba(weights, gradient, correction, learning_rate, decay, *expected.bounds, expected.out)
    )
    return weights


def _by_torch(weights: Tensor, gradient: Tensor, correction: Tensor | None, learning_rate: float) -> Tensor:
    corrected = gradient if correction is None else gradient.sub_(correction)
    return weights.sub_(corrected.mul_(learning_rate))


def _decayed(gradient: Tensor, expected: Expected | None, decay: float) -> Tensor:
    return gradient.add_(expected.out, alpha=decay) if expected and decay else gradient


def _is_for_machine_code(*vectors: Tensor) -> bool:
    size = len(vectors[0])
    return band_pass(size) is not band_by_numpy and all(
        one.device.type == "cpu" and one.dim() == 1 and one.is_contiguous() for one in vectors
    )
