"""Accelerated-Server-Pruning-modified: prune after the control has been updated, which mends server_pruning.

Meinhardt et al., "Sparse-ProxSkip", 2025, Appendix D. It saves no communication; it shows that the zero sum was what
server_pruning lacked.

    server   w    <- 1/N sum_i w~_i
    client   h_i  <- h_i + (p / gamma) (w - w~_i)                       with the unpruned mean
             w_i  <- TopK(w)
             w~_i <- w_i - gamma (grad f_i(w_i) - h_i)                  until theta = 1
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from common.rounds.state import RoundPlan, ServerState
from common.vectors.sparsity import top_k
from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class ServerPruningModified(ProxSkip):
    """ProxSkip whose clients start their local steps from the pruned model."""

    def starting_point(self, plan: RoundPlan, state: ServerState) -> Tensor:
        """Start from the pruned model; the control is settled by now."""
        return state.model.copy_(top_k(state.model, plan.density))
