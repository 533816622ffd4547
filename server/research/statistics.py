"""What several seeds say together."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]


def mean_and_error(of_seeds: ArrayLike) -> tuple[Numbers, Numbers]:
    """Return the mean over seeds, the first dimension, and its standard error: not a number for a single seed."""
    values = np.asarray(of_seeds, np.float64)
    mean = values.mean(axis=0)
    if len(values) == 1:
        return mean, np.full_like(mean, math.nan)
    return mean, values.std(axis=0, ddof=1) / math.sqrt(len(values))
