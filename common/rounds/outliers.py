"""Who is beyond all measure in a round: one number that is large enough would spoil an average for good."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from common.rounds.state import ServerState
from common.vectors.entries import Places

# Honest clients were at 8,400 at most, in the first round of 554 blogs of very unlike sizes (docs/operations.md).
MOST_TIMES_THE_MEDIAN = 100_000.0
PARTS_IN_MEMORY = 4  # of what was sent, of 256 kB each


class Change:
    """How far an upload is from what was sent, where it has values: what it leaves out can do no harm."""

    def __init__(self, sent: ServerState, let_go: Callable[[], None] = lambda: None) -> None:
        """Compare with what was sent; `let_go` gives back the memory in which a part of it was read, if it can."""
        self._let_go = let_go
        self._seen = 0  # parts
        vectors = {"model": sent.model, "buffers": sent.buffers}
        self._sent = {name: vector.numpy() for name, vector in vectors.items() if vector is not None}
        self._squares: defaultdict[str, float] = defaultdict(float)

    def see(self, name: str, where: slice | Places, block: NDArray[np.float32]) -> None:
        """Take a part of one of its vectors into account."""
        with np.errstate(over="ignore"):  # infinitely far is far enough
            far = block - self._sent[name][where] if name in self._sent else block
            self._squares[name] += float(np.dot(far, far))
        self._seen += 1
        if self._seen % PARTS_IN_MEMORY == 0:
            self._let_go()

    def norms(self) -> dict[str, float]:
        """Return the distance of each vector."""
        return {name: math.sqrt(square) for name, square in self._squares.items()}


def median_of(norms: Mapping[str, float]) -> float:
    """Return the median of those that are not zero, the lower of two, which half of all clients cannot raise."""
    ranked = sorted(norm for norm in norms.values() if norm > 0)
    return ranked[(len(ranked) - 1) // 2] if ranked else 0.0


def outliers(norms: Mapping[str, float], harmless: float = 0.0) -> dict[str, str]:
    """Return whose norm is beyond so many times the median, and more than harmless, and in words how far."""
    median = median_of(norms)
    most = max(MOST_TIMES_THE_MEDIAN * median, harmless)
    return {
        name: f"{norm:.2g}, where the median of all clients is {median:.2g}"
        for name, norm in norms.items()
        if norm > most
    }
