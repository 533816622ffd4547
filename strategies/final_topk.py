"""Final-TopK: train a dense model with ProxSkip, prune it once, at the very end.

Meinhardt et al., "Sparse-ProxSkip", 2025, Section 3.1: the accelerated baseline. All the training is ProxSkip's own;
what is evaluated and kept is the TopK of its model, while ProxSkip itself keeps it dense.

    client   as proxskip
    server   as proxskip;    w_T <- TopK(w_T)
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class FinalTopK(ProxSkip):
    """ProxSkip whose model is pruned when it is done: the evaluation of `Algorithm`, with nothing else changed."""
