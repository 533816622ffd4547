"""FedComLoc-Local: ProxSkip whose clients take gradients at the pruned model, and upload the dense one.

Yi, Meinhardt, Condat, Richtarik, "FedComLoc: Communication-Efficient Distributed Training of Sparse and Quantized
Models", TMLR 2025, Algorithm 1 with TopK as the compressor C of the local model. It is sparse_proxskip without the TopK
before the upload: a cheap gradient, but no cheap message.

    client   w~_i <- w_i - gamma (grad f_i(C(w_i)) - h_i)               until theta = 1: local_step
    server   w    <- 1/N sum_i w~_i                                     aggregate of ProxSkip
    client   h_i  <- h_i + (p / gamma) (w - w~_i)                       closed_control of ProxSkip

The paper also quantizes, which here only uploads are: by the codec's precision.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from common.rounds.algorithm import LocalWork
from common.rounds.state import RoundPlan
from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class FedComLocLocal(ProxSkip):
    """Sparse gradients, dense uploads."""

    def local_step(self, plan: RoundPlan, weights: Tensor, local: LocalWork) -> Tensor:
        """Update the dense weights with the gradient at the pruned ones."""
        return local.step(weights, at=local.pruned(weights, plan.density))
