"""FedComLoc-Com: ProxSkip whose clients prune what they upload, and nothing else.

Yi, Meinhardt, Condat, Richtarik, "FedComLoc: Communication-Efficient Distributed Training of Sparse and Quantized
Models", TMLR 2025, Algorithm 1 with TopK as the compressor C of the uplink. It is sparse_proxskip without the gradient
at the pruned model: the local steps do not know that they will be pruned.

    client   w~_i <- w_i - gamma (grad f_i(w_i) - h_i)                  until theta = 1: local_step of ProxSkip
             w^_i <- C(w~_i)                                            prune
    server   w    <- 1/N sum_i w^_i                                     aggregate of ProxSkip
    client   h_i  <- h_i + (p / gamma) (w - w^_i)                       closed_control of ProxSkip

The control is closed with what was sent, w^_i, so that the h_i sum to zero. The paper also quantizes; here that is the
codec's precision, which all methods share. Its gradients are stochastic where a task's are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from common.rounds.state import RoundPlan
from common.vectors.sparsity import top_k
from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class FedComLocCom(ProxSkip):
    """Dense training, pruned uploads."""

    uploads_are_pruned: ClassVar[bool] = True

    def prune(self, plan: RoundPlan, weights: Tensor) -> Tensor:
        """Keep the K largest."""
        return top_k(weights, plan.density)
