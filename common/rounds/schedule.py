"""When to communicate: how many local steps each round takes.

ProxSkip flips a coin after every local step t = 0, 1, 2, ... and communicates when theta_t = 1. Everybody sees the
same coins, so the server draws them and tells the clients only the number of steps up to the next communication.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from common.randomness import stream
from common.ranges import Range

ScheduleKind = Literal["coin", "period"]
LONGEST_PERIOD = 10**6
MOST_LOCAL_STEPS = 64 * LONGEST_PERIOD  # of a round: that a coin falls so seldom happens once in e^64 rounds


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The section `schedule` of an experiment."""

    kind: ScheduleKind | None = None  # None: the algorithm's own choice
    period: Annotated[float, Range(at_least=1, at_most=LONGEST_PERIOD)] = 16.0  # 1 / p

    @property
    def probability(self) -> float:
        """Return p, which the control update uses with either kind."""
        return 1 / self.period


def local_steps(schedule: Schedule, seed: int, round_number: int) -> int:
    """Return the local steps of a round (counted from 1): a pure function, so a restarted server plans the same."""
    if schedule.kind == "coin":
        return int(stream(seed, "coin", round_number).geometric(schedule.probability))
    # theta_t = 1 iff t mod floor(1/p) = 0: the first communication comes after the very first step.
    return 1 if round_number == 1 else math.floor(schedule.period)
