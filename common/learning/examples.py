"""Examples to predict, and how good predictions of them are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Examples:
    """What a model is to predict: its inputs, what each example is called, and the right answers where known."""

    names: Sequence[str]
    inputs: tuple[Tensor, ...]
    targets: NDArray[np.float64]  # numbers, or the places of classes; NaN where nobody knows


def r_squared(predicted: NDArray[np.float64], targets: NDArray[np.float64]) -> float:
    """Return the share of the targets' variance that predictions explain."""
    residual = predicted - targets
    return float(1 - residual @ residual / np.square(targets - targets.mean()).sum())
