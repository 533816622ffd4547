"""FedAvg: local gradient steps, then the mean.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1
(here with uniform weights: a client's number of examples belongs into its loss).

    client   w_i <- w_i - gamma grad f_i(w_i)
    server   w   <- 1/N sum_i w_i
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from common.rounds.algorithm import Algorithm, LocalWork
from common.rounds.schedule import ScheduleKind
from common.rounds.state import RoundPlan, ServerState, Upload


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm, dense=True):
    """Local steps and the mean, nothing against client drift."""

    default_schedule: ClassVar[ScheduleKind] = "period"

    def local_step(self, plan: RoundPlan, weights: Tensor, local: LocalWork) -> Tensor:
        """Step along the gradient."""
        return local.step(weights)

    def aggregate(self, plan: RoundPlan, state: ServerState, mean: Upload, participation: float) -> ServerState:
        """Take the mean."""
        return replace(state, model=mean.model, buffers=mean.buffers)
