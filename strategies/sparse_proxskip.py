"""Sparse-ProxSkip: straight-through pruning in the local steps, TopK before the upload.

Meinhardt et al., "Sparse-ProxSkip: Accelerated Sparse-to-Sparse Training in Federated Learning", 2025, Algorithm 1,
option Sparse-ProxSkip. The local steps keep a dense model and take the gradient at its pruned self (line 8); only the
pruned model is sent (line 11), and the control is updated with it, so that the h_i sum to zero (line 13). Line 15 of
the paper writes w^ where only w~ exists.

    client   w~_i <- w_i - gamma (grad f_i(TopK(w_i)) - h_i)            1/p times;    w^_i <- TopK(w~_i)
    server   w    <- 1/N sum_i w^_i
    client   h_i  <- h_i + (p / gamma) (w - w^_i)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from common.rounds.algorithm import LocalWork
from common.rounds.schedule import ScheduleKind
from common.rounds.state import RoundPlan
from common.vectors.sparsity import top_k
from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class SparseProxSkip(ProxSkip):
    """The paper's method: accelerated, small uploads, the best sparse model."""

    default_schedule: ClassVar[ScheduleKind] = "period"
    uploads_are_pruned: ClassVar[bool] = True

    def local_step(self, plan: RoundPlan, weights: Tensor, local: LocalWork) -> Tensor:
        """Update the dense weights with the gradient at the pruned ones (straight-through estimator)."""
        return local.step(weights, at=local.pruned(weights, plan.density))

    def prune(self, plan: RoundPlan, weights: Tensor) -> Tensor:
        """Keep the K largest."""
        return top_k(weights, plan.density)
