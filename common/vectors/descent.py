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
        _decay(gradient, expected, decay)
        corrected = gradient if correction is None else gradient.sub_(correction)
        return weights.sub_(corrected.mul_(learning_rate))
    from common.vectors.descent_fast import descend_and_scan_by_numba, descend_by_numba, torch_rounds_a_sum_once

    is_expected = expected is not None and expected.vector is weights
    if not (is_expected and torch_rounds_a_sum_once()):
        decay = _decay(gradient, expected, decay)
    if expected is None or not is_expected:
        return descend_by_numba(weights, gradient, correction, learning_rate)
    band = descend_and_scan_by_numba(
        weights, gradient, correction, learning_rate, decay, *expected.bounds, expected.out
    )
    expected.found(band)
    return weights


def _decay(gradient: Tensor, expected: Expected | None, decay: float) -> float:
    """Add what is to be added, and return what is left of that: nothing."""
    if decay and expected:
        gradient.add_(expected.out, alpha=decay)
    return 0.0


def _is_for_machine_code(*vectors: Tensor) -> bool:
    size = len(vectors[0])
    return band_pass(size) is not band_by_numpy and all(
        one.device.type == "cpu" and one.dim() == 1 and one.is_contiguous() for one in vectors
    )
