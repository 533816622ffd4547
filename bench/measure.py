"""Time several things in turns, so that noise of the machine hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """A figure that does not depend on the machine, and the most that we allow ourselves."""

    name: str
    value: float
    limit: float | None  # None: for information

    @property
    def holds(self) -> bool:
        """Say whether the limit is kept."""
        return self.limit is None or self.value <= self.limit


def median_seconds(actions: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Return the median time of each action over interleaved repetitions, after one unmeasured turn."""
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for repetition in range(repetitions + 1):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            if repetition:
                samples[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in samples.items()}
