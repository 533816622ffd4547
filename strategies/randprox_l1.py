"""RandProx-l1: ProxSkip with an l1 penalty, whose proximity operator follows every local step.

Condat and Richtarik, "RandProx: Primal-Dual Optimization Algorithms with Randomized Proximal Updates", ICLR 2023;
Section 3.2 of the Sparse-ProxSkip paper. Sparse in the limit, with no guarantee on the way and none on the level.

    client   w~_i <- soft(w_i - gamma (grad f_i(w_i) - h_i), gamma lambda)      until theta = 1
    server   w    <- 1/N sum_i w~_i
    client   h_i  <- h_i + (p / gamma) (w - w~_i)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from common.ranges import Range
from common.rounds.algorithm import LocalWork
from common.rounds.state import RoundPlan
from common.vectors.sparsity import soft_threshold
from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class RandProxL1(ProxSkip):
    """Federated lasso."""

    l1_strength: Annotated[float, Range(at_least=0)] = 1e-3  # lambda, beside each client's f_i

    def local_step(self, plan: RoundPlan, weights: Tensor, local: LocalWork) -> Tensor:
        """Step, then shrink."""
        stepped = super().local_step(plan, weights, local)
        return soft_threshold(stepped, plan.learning_rate * self.l1_strength)
