"""ProxSkip: communicate at random, and correct client drift by a control variate that each client keeps.

Mishchenko et al., "ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication Acceleration! Finally!",
ICML 2022, Algorithm 2 (Scaffnew); Algorithm 1 of the Sparse-ProxSkip paper with all pruning switched off.

    client   w~_i <- w_i - gamma (grad f_i(w_i) - h_i)                  until theta = 1
    server   w    <- 1/N sum_i w~_i
    client   h_i  <- h_i + (p / gamma) (w - w~_i)                       on the next download

The h_i sum to zero: the last line adds N w - sum_i w~_i = 0 to their sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from common.rounds.algorithm import Algorithm, LocalWork
from common.rounds.schedule import ScheduleKind
from common.rounds.state import ClientMemory, Pending, RoundPlan, ServerState, Upload


@dataclass(frozen=True, kw_only=True)
class ProxSkip(Algorithm, dense=True):
    """The accelerated dense method, and the trunk of the sparse ones."""

    default_schedule: ClassVar[ScheduleKind] = "coin"
    has_control: ClassVar[bool] = True
    closes_with_average: ClassVar[bool] = True

    def local_step(self, plan: RoundPlan, weights: Tensor, local: LocalWork) -> Tensor:
        """Step along the gradient less h_i."""
        return local.step(weights)

    def closed_control(self, memory: ClientMemory, pending: Pending, average: Tensor) -> Tensor:
        """Move h_i by the distance from what was sent to what became of it."""
        assert memory.control is not None
        assert pending.reference is not None
        step = pending.plan.probability / pending.plan.learning_rate
        distance = torch.sub(average, pending.reference, out=pending.reference)
        return distance.mul_(step).add_(memory.control)

    def aggregate(self, plan: RoundPlan, state: ServerState, mean: Upload, participation: float) -> ServerState:
        """Take the mean: the proximity operator of the consensus constraint."""
        return replace(state, model=mean.model, buffers=mean.buffers)
