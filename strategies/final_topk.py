"""Final-TopK: train a dense model with ProxSkip, prune it once, at the very end.

Meinhardt et al., "Sparse-ProxSkip", 2025, Section 3.1: the accelerated baseline. Since every method's model is pruned
to the target density before it is evaluated or kept, all the training is ProxSkip's own.

    client   as proxskip
    server   as proxskip;    w_T <- TopK(w_T)
"""

from __future__ import annotations

from dataclasses import dataclass

from common.algorithm import Density
from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class FinalTopK(ProxSkip):
    """ProxSkip that aims at a sparse model only when it is done."""

    density: Density = 0.1
