"""The numbers that an option of an experiment may take."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Numbers end up in float32 tensors: what overflows or vanishes there is refused.
SMALLEST, LARGEST = 1e-37, 1e38


@dataclass(frozen=True, kw_only=True)
class Range:
    """An annotation of a dataclass's field: `Annotated[float, Range(above=0)]`."""

    above: float = -math.inf
    at_least: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def __contains__(self, number: float) -> bool:
        return self.above < number < self.below and self.at_least <= number <= self.at_most

    def __str__(self) -> str:
        bounds = {"above": self.above, "at least": self.at_least, "below": self.below, "at most": self.at_most}
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))
