"""Sparse-ProxSkip-modified: the control is updated with the unpruned model. It diverges, and is here to show it.

Meinhardt et al., "Sparse-ProxSkip", 2025, Section 3.3 and Appendix D. One symbol differs from sparse_proxskip.

    client   w~_i <- w_i - gamma (grad f_i(TopK(w_i)) - h_i)            1/p times;    w^_i <- TopK(w~_i)
    server   w    <- 1/N sum_i w^_i
    client   h_i  <- h_i + (p / gamma) (w - w~_i)                       the sum moves by N w - sum_i w~_i
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from common.rounds.state import ClientMemory, RoundPlan, ServerState, Upload
from strategies.sparse_proxskip import SparseProxSkip


@dataclass(frozen=True, kw_only=True)
class SparseProxSkipModified(SparseProxSkip):
    """What goes wrong when the control does not see what was sent."""

    keeps_zero_sum: ClassVar[bool] = False

    def finish(
        self, plan: RoundPlan, state: ServerState, memory: ClientMemory, weights: Tensor
    ) -> tuple[Upload, Tensor]:
        """Upload the pruned model, but close the control with the unpruned one."""
        upload, _ = super().finish(plan, state, memory, weights)
        return upload, weights
