"""What a run is at, as far as its strategy knows: for those who watch it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of a round, from when it was begun."""

    name: Literal["starting", "training", "evaluating", "recentring"]
    round: int
    started: float = field(default_factory=time.time)
