"""Sparse-ProxSkip in an arena: a client's weights, gradient and control live in a few public places only.

What the Sparse-ProxSkip paper leaves open: its gradients and controls are dense, "requiring further modification before
yielding ... the memory footprint of a small model". Here, after some dense rounds, everything a client holds is zero
outside the arena A, which the server chooses anew for every round: the largest weights, and some places at random.

    server   A    <- the largest of w, and exploration K others         arena K places in all
    client   h_i  <- h_i in A, else 0                                   all clients at once, so that they sum to zero
             w_i  <- w   in A, else 0
             w~_i <- w_i - gamma (grad f_i(TopK(w_i)) - h_i) in A       1/p times;    w^_i <- TopK(w~_i)
    server   w    <- 1/N sum_i w^_i
    client   h_i  <- h_i + (p / gamma) (w - w^_i)

A device that holds w_i, gradient and h_i by their entries in A needs arena K values for each, not d: with an arena of
2.5 K and a density of 0.1, a quarter. The places of an upload are then K out of 2.5 K, and take 2.4 bits each at the
entropy, not 4.7 as K out of 10 K do. This program shows what becomes of the model: it still writes the zeros down.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from common.randomness import stream
from common.ranges import Range
from common.rounds.algorithm import LocalWork
from common.rounds.objective import Gradient
from common.rounds.state import ClientMemory, RoundPlan, ServerState, Upload
from common.vectors.sparsity import kept_count, top_k
from strategies.sparse_proxskip import SparseProxSkip


class ArenaWork(LocalWork):
    """Local steps that change nothing outside the arena."""

    def __init__(self, plan: RoundPlan, gradient: Gradient, correction: Tensor | None, arena: Tensor) -> None:
        super().__init__(plan, gradient, correction)
        self._arena = arena

    def gradient(self, weights: Tensor) -> tuple[Tensor, float]:
        """Return the gradient in the arena; weights and correction are zero elsewhere."""
        gradient, decay = super().gradient(weights)
        return gradient.mul_(self._arena), decay


@dataclass(frozen=True, kw_only=True)
class SparseProxSkipArena(SparseProxSkip):
    """Sparse-ProxSkip for a device that holds a small part of everything.

    The `control` of the server's state says of each place since which round it is in the arena; 0: it is not. So a
    client that was away knows what the others have forgotten meanwhile, and the server what it will forget of a shift.
    """

    arena: Annotated[float, Range(above=1)] = 2.5  # places, times K
    exploration: Annotated[float, Range(above=0)] = 0.2  # of them at random, times K
    dense_rounds: Annotated[int, Range(at_least=1)] = 2  # at the start, in which all places are in the arena

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arena < 1 + self.exploration:
            raise ValueError(f"arena = {self.arena} must be at least 1 + exploration = {1 + self.exploration}")

    def initial_state(self, state: ServerState) -> ServerState:
        """Start with all places, since the first round."""
        return replace(state, control=torch.ones_like(state.model))

    def initial_memory(self, state: ServerState) -> ClientMemory:
        """Start without a correction."""
        return ClientMemory(control=torch.zeros_like(state.model))

    def forget(self, memory: ClientMemory, state: ServerState) -> ClientMemory:
        """Forget what is not in the arena, or was not at some time since this client was last counted."""
        assert memory.control is not None
        assert state.control is not None
        stayed = (state.control > 0) & (state.control <= memory.history.counted)
        return replace(memory, control=memory.control * stayed)

    def starting_point(self, plan: RoundPlan, state: ServerState) -> Tensor:
        """Start from what is in the arena."""
        assert state.control is not None
        return state.model.mul_(state.control > 0)

    def local_work(self, plan: RoundPlan, state: ServerState, memory: ClientMemory, gradient: Gradient) -> LocalWork:
        """Step in the arena."""
        assert state.control is not None
        return ArenaWork(plan, gradient, self.correction(memory, state), state.control > 0)

    def aggregate(self, plan: RoundPlan, state: ServerState, mean: Upload, participation: float) -> ServerState:
        """Take the mean, and choose the next round's arena."""
        assert state.control is not None
        after = super().aggregate(plan, state, mean, participation)
        since = torch.where(state.control > 0, state.control, plan.round + 1)
        return replace(after, control=torch.where(self._arena_after(plan, after.model), since, 0.0))

    def holders(self, state: ServerState, counted: Collection[int]) -> Tensor:
        """Return how many were counted since a place is in the arena: who was not forgets a shift there, too."""
        assert state.control is not None
        rounds = torch.tensor(sorted(counted), dtype=state.control.dtype)
        # Where it is in no arena this is too many, but the controls are zero there: so is their mean.
        return len(rounds) - torch.searchsorted(rounds, state.control, out_int32=True)

    def _arena_after(self, plan: RoundPlan, model: Tensor) -> Tensor:
        """Return the places of the next round: the largest weights, and others at random."""
        number, size = plan.round + 1, model.shape[-1]
        all_places = min(size, round(self.arena * kept_count(plan.density, size)))
        if number <= self.dense_rounds or all_places == size:
            return torch.ones_like(model, dtype=torch.bool)
        explored = max(1, round(self.exploration * kept_count(plan.density, size)))
        largest = top_k(model, (all_places - explored) / size) != 0
        chances = 1 - stream(plan.seed, "arena", number).random(size)  # none of them is zero
        others = torch.where(largest, 0.0, torch.from_numpy(chances))
        return largest | (top_k(others, explored / size) != 0)
