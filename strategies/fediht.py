"""FedIHT: FedAvg whose clients prune after every local step.

Tong et al., "Federated Nonconvex Sparse Learning", 2020, Algorithm 2 (FedIter-HT), with the server's mean left as it
is, as in the experiments of the Sparse-ProxSkip paper (its Appendix A: the model is then less sparse than its parts).

    client   w_i <- TopK(w_i - gamma grad f_i(w_i))
    server   w   <- 1/N sum_i w_i
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from common.rounds.algorithm import LocalWork
from common.rounds.state import RoundPlan
from strategies.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedIHT(FedAvg):
    """Iterative hard thresholding on the clients: small uploads, no acceleration."""

    uploads_are_pruned: ClassVar[bool] = True

    def local_step(self, plan: RoundPlan, weights: Tensor, local: LocalWork) -> Tensor:
        """Step, then prune."""
        return local.top_k(super().local_step(plan, weights, local), plan.density)
