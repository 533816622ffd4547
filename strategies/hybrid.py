"""Hybrid: prune locally only as far as the device needs, straight-through for the rest.

Meinhardt et al., "Sparse-ProxSkip", 2025, the proposal for practice at the end of Section 3.4: sparse_proxskip_local
at the device's own density and sparse_proxskip at the target density, in one step.

    client   w~_i <- TopL(w_i - gamma (grad f_i(TopK(w_i)) - h_i))      1/p times, L >= K;    w^_i <- TopK(w~_i)
    server   w    <- 1/N sum_i w^_i
    client   h_i  <- h_i + (p / gamma) (w - w^_i)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from common.rounds.algorithm import Density, LocalWork
from common.rounds.state import RoundPlan
from strategies.sparse_proxskip import SparseProxSkip


@dataclass(frozen=True, kw_only=True)
class Hybrid(SparseProxSkip):
    """Sparse-ProxSkip within a device's memory."""

    local_density: Density = 0.3  # L / d: what the device can hold

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_density < self.density:
            raise ValueError(f"local_density = {self.local_density} must be at least density = {self.density}")

    def local_step(self, plan: RoundPlan, weights: Tensor, local: LocalWork) -> Tensor:
        """Take a straight-through step, then keep what the device can hold."""
        return local.top_k(super().local_step(plan, weights, local), self.local_density)
