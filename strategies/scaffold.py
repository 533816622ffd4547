"""Scaffold: control variates on both sides, exchanged with the model.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, Algorithm 1 with
option II for the control (line 12) and global step size 1.

    client   w_i  <- w_i - gamma (grad f_i(w_i) - c_i + c)             K times, from w
             c_i' <- c_i - c + (w - w_i) / (K gamma)
    server   w    <- 1/N sum_i w_i,    c <- c + 1/N sum_i (c_i' - c_i)
             (sums over the clients that took part; w with their number in place of N)

The corrections c_i - c sum to zero, because c stays the mean of the c_i.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from common.rounds.rounding import rounded
from common.rounds.state import ClientMemory, Pending, RoundPlan, ServerState, Upload
from strategies.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg, dense=True):
    """FedAvg with the difference of the client's and the server's control as correction."""

    has_control: ClassVar[bool] = True

    def initial_state(self, state: ServerState) -> ServerState:
        """Start the server's control c at zero."""
        return replace(state, control=torch.zeros_like(state.model))

    def initial_memory(self, state: ServerState) -> ClientMemory:
        """Start the client's control at c, which is zero before the first round: the correction is zero either way."""
        assert state.control is not None
        return ClientMemory(control=state.control.clone())

    def correction(self, memory: ClientMemory, state: ServerState) -> Tensor:
        """Return c_i - c."""
        assert memory.control is not None
        assert state.control is not None
        return memory.control - state.control

    def starting_point(self, plan: RoundPlan, state: ServerState) -> Tensor:
        """Start from a copy of w, which the control needs at the end."""
        return state.model.clone()

    def finish(
        self, plan: RoundPlan, state: ServerState, memory: ClientMemory, weights: Tensor
    ) -> tuple[Upload, Tensor]:
        """Upload the model and the change of the control, which holds once the round is counted."""
        assert memory.control is not None
        assert state.control is not None
        sent = rounded(plan, weights, in_place=True)
        change = torch.sub(state.model, sent, out=state.model)  # which is not needed any more
        change = change.div_(plan.local_steps * plan.learning_rate).sub_(state.control)
        change = rounded(plan, change, in_place=True)
        return Upload(model=sent, control_change=change), memory.control + change

    def uploaded_like(self, state: ServerState) -> ServerState:
        """Return the sizes of all: the change of the control is as long as c."""
        return state

    def closed_control(self, memory: ClientMemory, pending: Pending, average: Tensor) -> Tensor:
        """Take over c_i'."""
        assert pending.reference is not None
        return pending.reference

    def aggregate(self, plan: RoundPlan, state: ServerState, mean: Upload, participation: float) -> ServerState:
        """Take the mean of the models; c stays the mean of all c_i, of which only those counted have moved."""
        assert state.control is not None
        assert mean.control_change is not None
        control = state.control + participation * mean.control_change
        return replace(super().aggregate(plan, state, mean, participation), control=control)
