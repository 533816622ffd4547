"""FedHT: FedAvg whose server prunes the mean.

Tong et al., "Federated Nonconvex Sparse Learning", 2020, Algorithm 1 (Fed-HT). Uploads stay dense.

    client   w_i <- w_i - gamma grad f_i(w_i)
    server   w   <- TopK(1/N sum_i w_i)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.rounds.state import RoundPlan, ServerState, Upload
from common.vectors.sparsity import top_k
from strategies.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedHT(FedAvg):
    """Hard thresholding at the server."""

    def aggregate(self, plan: RoundPlan, state: ServerState, mean: Upload, participation: float) -> ServerState:
        """Take the TopK of the mean."""
        return replace(super().aggregate(plan, state, mean, participation), model=top_k(mean.model, plan.density))
