"""What an operator asks of a deployed run, beside the experiment."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Terms:
    """When a round is over, when a client is given up, what is asked beside training."""

    minimum_clients: int | None = None  # that a round needs; None: all
    deadline_seconds: float | None = None  # of a round; None: what `start` is given, an hour
    evict_after_rounds: int | None = None  # in which a client was not counted; None: never
    evict_after_seconds: float | None = None  # for which a client was away; None: never
    largest_norm: float = math.inf  # of an upload's model
    robust: int = 0  # clients that may lie: as many are left out of each round, as unlike the others
    evaluate_on_clients: bool = False
    audit_every_rounds: int | None = None  # None: never
