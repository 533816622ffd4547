"""Sparse-ProxSkip-Local: ProxSkip whose clients prune after every local step.

Meinhardt et al., "Sparse-ProxSkip", 2025, Algorithm 1, option Sparse-ProxSkip-Local; RandProx with the (nonconvex)
constraint of at most K nonzeros in place of the l1 norm (Section 3.3).

    client   w~_i <- TopK(w_i - gamma (grad f_i(w_i) - h_i))            until theta = 1;    w^_i <- TopK(w~_i)
    server   w    <- 1/N sum_i w^_i
    client   h_i  <- h_i + (p / gamma) (w - w^_i)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from common.rounds.algorithm import LocalWork
from common.rounds.state import RoundPlan
from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class SparseProxSkipLocal(ProxSkip):
    """A sparse model at every moment, for devices that cannot hold a dense one."""

    uploads_are_pruned: ClassVar[bool] = True

    def local_step(self, plan: RoundPlan, weights: Tensor, local: LocalWork) -> Tensor:
        """Step, then prune."""
        return local.top_k(super().local_step(plan, weights, local), plan.density)
