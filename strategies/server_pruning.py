"""Accelerated-Server-Pruning: ProxSkip whose server prunes the mean. It fails, and is here to show it.

Meinhardt et al., "Sparse-ProxSkip", 2025, Sections 3.1 and 4.2.1. The clients correct towards the pruned mean from
what they sent unpruned, so the h_i no longer sum to zero and shift every later gradient.

    client   w~_i <- w_i - gamma (grad f_i(w_i) - h_i)                  until theta = 1
    server   w    <- TopK(1/N sum_i w~_i)
    client   h_i  <- h_i + (p / gamma) (w - w~_i)                       the sum moves by N (w - mean of w~_i)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from common.rounds.state import RoundPlan, ServerState, Upload
from common.vectors.sparsity import top_k
from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class ServerPruning(ProxSkip):
    """The naive combination of acceleration and pruning."""

    keeps_zero_sum: ClassVar[bool] = False

    def aggregate(self, plan: RoundPlan, state: ServerState, mean: Upload, participation: float) -> ServerState:
        """Take the TopK of the mean."""
        return replace(super().aggregate(plan, state, mean, participation), model=top_k(mean.model, plan.density))
