"""FedComLoc-Global: ProxSkip whose server prunes the mean. It is server_pruning, by the name of another paper.

Yi, Meinhardt, Condat, Richtarik, "FedComLoc: Communication-Efficient Distributed Training of Sparse and Quantized
Models", TMLR 2025, Algorithm 1 with TopK as the compressor C of the downlink.

    client   w~_i <- w_i - gamma (grad f_i(w_i) - h_i)                  until theta = 1: local_step of ProxSkip
    server   w    <- C(1/N sum_i w~_i)                                  aggregate of ServerPruning
    client   h_i  <- h_i + (p / gamma) (w - w~_i)                       closed_control of ProxSkip

The h_i do not sum to zero: they are closed with the pruned mean of what was not pruned. Messages up are dense, and a
model that goes down has K values.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.server_pruning import ServerPruning


@dataclass(frozen=True, kw_only=True)
class FedComLocGlobal(ServerPruning):
    """Dense training and uploads, pruned downloads."""
