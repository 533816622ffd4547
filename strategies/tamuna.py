"""TAMUNA: each coordinate is sent by s clients of those who take part, and the control moves where one has sent.

Condat, Agarsky, Malinovsky, Richtarik, "TAMUNA: Doubly Accelerated Distributed Optimization with Local Training,
Compression, and Partial Participation", 2023, Algorithm 1. The c clients of a round have masks q_i, the columns of a
pattern with s ones in every row, dealt out at random; its row k has them in the columns s k, ..., s k + s - 1 modulo c.
On the right, the names that things have in the code.

    client   w_i <- w_i - gamma grad f_i(w_i) + gamma h_i               until theta = 1, from w: local_step
             C_i(w_i) = q_i w_i                                         what it sends: prune
    server   w   <- 1/s sum_i C_i(w_i)                                  server_round, by `senders`
    client   h_i <- h_i + (eta / gamma) (C_i(w) - C_i(w_i))             closed_control; eta = p (s - 1) / s

The h_i of those who were not asked stay, and all of them sum to zero, coordinate by coordinate. Where we deviate: the
theory allows N / (N - 1) times this eta, but a client does not know N. Those who are there are asked, not a cohort that
is drawn; with c < s of them all send everything. Where uploads are missing, a coordinate has the mean of those that
came, and stays as it was where none did. Pattern, mean, local step and control are those of Flower's baseline `tamuna`;
there the eta is an option.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.randomness import stream
from common.ranges import Range
from common.rounds.state import ClientMemory, Pending, RoundPlan, ServerState, Upload
from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class Tamuna(ProxSkip):
    """A share s / c of the model in every upload, whoever takes part."""

    uploads_are_alike: ClassVar[bool] = False

    senders_per_place: Annotated[int, Range(at_least=2)] = 2  # s

    def prune(self, plan: RoundPlan, weights: Tensor) -> Tensor:
        """Keep what this client is to send."""
        return torch.where(self._mask(plan, weights), weights, 0.0)

    def answers(self, made_by: RoundPlan, asked: RoundPlan) -> bool:
        """Say whether the mask is still the same."""
        return (made_by.cohort, made_by.seats) == (asked.cohort, asked.seats)

    def closed_control(self, memory: ClientMemory, pending: Pending, average: Tensor) -> Tensor:
        """Move h_i where this client has sent something."""
        assert memory.control is not None
        assert pending.reference is not None
        plan, senders = pending.plan, self._most_senders(pending.plan)
        step = plan.probability * (senders - 1) / (senders * plan.learning_rate)
        distance = torch.sub(average, pending.reference, out=pending.reference)
        return distance.mul_(self._mask(plan, distance)).mul_(step).add_(memory.control)

    def senders(self, plan: RoundPlan, size: int) -> Tensor:
        """Return how many of those counted were to send each coordinate: s, where nobody is missing."""
        senders = self._most_senders(plan)
        counted = np.zeros(plan.cohort, np.int64)
        counted[_columns(plan)] = 1
        before = np.concatenate([[0], np.cumsum(np.tile(counted, 2))])  # how many are left of a column
        first = senders * np.arange(size) % plan.cohort
        return torch.from_numpy(before[first + senders] - before[first])

    def aggregate(self, plan: RoundPlan, state: ServerState, mean: Upload, participation: float) -> ServerState:
        """Take the mean where there is one."""
        is_sent = self.senders(plan, mean.model.shape[-1]) > 0
        return replace(state, model=torch.where(is_sent, mean.model, state.model), buffers=mean.buffers)

    def most_uploaded(self, plan: RoundPlan, size: int) -> int:
        """Return the ones in the fullest column."""
        return -(-self._most_senders(plan) * size // plan.cohort)

    def _most_senders(self, plan: RoundPlan) -> int:
        """Return s, which is all of them where there are few."""
        return min(self.senders_per_place, plan.cohort)

    def _mask(self, plan: RoundPlan, like: Tensor) -> Tensor:
        """Return the columns of those who sit there."""
        senders = self._most_senders(plan)
        columns = torch.from_numpy(_columns(plan)).to(like.device).unsqueeze(-1)
        first = senders * torch.arange(like.shape[-1], device=like.device)
        return ((columns - first) % plan.cohort < senders).reshape(like.shape)


def _columns(plan: RoundPlan) -> NDArray[np.int64]:
    """Return which column each seat was dealt."""
    dealt: NDArray[np.int64] = stream(plan.seed, "columns", plan.round).permutation(plan.cohort)
    return dealt[list(plan.seats)]
