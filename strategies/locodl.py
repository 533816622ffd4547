"""LoCoDL: clients upload an unbiased sample of how far they are from a model that all of them share.

Condat, Maranjyan, Richtarik, "LoCoDL: Communication-Efficient Distributed Learning with Local Training and
Compression", ICLR 2025, Algorithm 1, with rand-K as the compressor C_i, of variance omega = d/K - 1. On the right, the
names that things have in the code.

    client   x^_i <- x_i - gamma grad f_i(x_i) + gamma u_i              until theta = 1, from y: local_step
    all      y^   <- y - gamma grad g(y) + gamma v                      as often, at once: _shared
    client   d_i  <- C_i(x^_i - y^)                                     K places at random, times d/K: _rand_k
    server   d    <- 1/(2N) sum_i d_i,    y <- y^ + rho d               aggregate
    client   x_i  <- (1 - rho) x^_i + rho (y^ + d)                      the next starting_point
             u_i  <- u_i + c (d - d_i)                                  closed_control
    server   v    <- v + c d                                            aggregate; c = p chi / (gamma (1 + 2 omega))

Where we deviate: rho = 1, so that all clients go on from y and need not keep an x_i of their own; the theory then asks
for chi <= 1 - omega / N, which few clients with few places cannot have. g = 0: a regularizer stays in the f_i. Where
only a part S of the clients is counted, d is over these, and v moves by |S| / N of it: the u_i + v sum to zero still.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from common.randomness import stream
from common.ranges import Range
from common.rounds.algorithm import Density
from common.rounds.rounding import rounded
from common.rounds.state import ClientMemory, Pending, RoundPlan, ServerState, Upload
from common.vectors.sparsity import kept_count
from strategies.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class LoCoDL(ProxSkip):
    """Local training with unbiased compression; v is the `control` of the server's state."""

    uploads_are_alike: ClassVar[bool] = False
    uploads_are_near: ClassVar[bool] = False  # they are distances

    upload_density: Density = 0.1  # K / d, of rand-K; `density` is of the model that is evaluated and kept
    control_step: Annotated[float, Range(above=0, at_most=1)] = 0.1  # chi: what 10 clients may have with K / d = 0.1

    def initial_state(self, state: ServerState) -> ServerState:
        """Start v at zero."""
        return replace(state, control=torch.zeros_like(state.model))

    def initial_memory(self, state: ServerState) -> ClientMemory:
        """Start u_i at -v, which is zero before the first round: no sum changes by a new client."""
        assert state.control is not None
        return ClientMemory(control=-state.control)

    def centred(self, memory: ClientMemory, state: ServerState) -> Tensor:
        """Return u_i + v."""
        assert memory.control is not None
        assert state.control is not None
        return memory.control + state.control

    def starting_point(self, plan: RoundPlan, state: ServerState) -> Tensor:
        """Start from a copy of y, which is needed at the end."""
        return state.model.clone()

    def finish(
        self, plan: RoundPlan, state: ServerState, memory: ClientMemory, weights: Tensor
    ) -> tuple[Upload, Tensor]:
        """Upload d_i; what the control is closed with, y^ + d_i, makes of the next y the difference of d and d_i."""
        shared = _shared(plan, state)
        sent = rounded(plan, _rand_k(plan, weights - shared, self.upload_density))
        return Upload(model=sent), shared + sent

    def closed_control(self, memory: ClientMemory, pending: Pending, average: Tensor) -> Tensor:
        """Move u_i by c (d - d_i)."""
        assert memory.control is not None
        assert pending.reference is not None
        distance = torch.sub(average, pending.reference, out=pending.reference)
        return distance.mul_(self._step(pending.plan, average.shape[-1])).add_(memory.control)

    def aggregate(self, plan: RoundPlan, state: ServerState, mean: Upload, participation: float) -> ServerState:
        """Move y half of the way, and v against what the u_i of those counted will move by, roundings included."""
        assert state.control is not None
        shared = _shared(plan, state)
        model = shared + mean.model / 2
        moved = (mean.model - (model - shared)) * (participation * self._step(plan, model.shape[-1]))
        return replace(state, model=model, control=state.control + moved, buffers=mean.buffers)

    def most_uploaded(self, plan: RoundPlan, size: int) -> int:
        """Return K."""
        return kept_count(self.upload_density, size)

    def _step(self, plan: RoundPlan, size: int) -> float:
        """Return c."""
        variance = size / kept_count(self.upload_density, size) - 1  # omega
        return plan.probability * self.control_step / (plan.learning_rate * (1 + 2 * variance))


def _shared(plan: RoundPlan, state: ServerState) -> Tensor:
    """Return y^, of which clients and server have the same bits."""
    assert state.control is not None
    return state.model + state.control * (plan.local_steps * plan.learning_rate)


def _rand_k(plan: RoundPlan, distance: Tensor, density: float) -> Tensor:
    """Keep K places of every row, which each client draws by itself, and scale them to be right on average."""
    size = distance.shape[-1]
    kept = kept_count(density, size)
    mask = np.zeros((len(plan.seats), size), bool)
    for row, seat in zip(mask, plan.seats, strict=True):
        row[stream(plan.seed, "rand-k", plan.round, seat).choice(size, kept, replace=False, shuffle=False)] = True
    places = torch.from_numpy(mask).reshape(distance.shape).to(distance.device)
    return torch.where(places, distance * (size / kept), 0.0)
