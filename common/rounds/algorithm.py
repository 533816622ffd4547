"""What a federated algorithm is: a few functions over flat vectors, the client's half and the server's.

The paper's Meta Sparse-ProxSkip (Algorithm 1) is one round with options; each option is a method here, and an
algorithm is a file in strategies/ that overrides the ones in which it differs. All of them work on a vector (d,) of one
client as well as on a tensor (N, d) of N clients. None changes what it is given, but where it says so: local steps may
write over the weights, and to close a round over its reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from common.ranges import Range
from common.rounds.ledger import Checkpoint
from common.rounds.mean import RunningMean
from common.rounds.objective import Gradient, Objective
from common.rounds.rounding import rounded, rounded_statistics
from common.rounds.schedule import ScheduleKind
from common.rounds.state import ClientMemory, Pending, RoundPlan, ServerState, Upload
from common.vectors.descent import descend
from common.vectors.remainder import Remainder
from common.vectors.sparsity import WarmTopK, kept_count, top_k

Density = Annotated[float, Range(above=0, at_most=1)]


class LocalWork:
    """What the local steps of one round are made of; it writes where numbers are already, to take no more room."""

    def __init__(self, plan: RoundPlan, gradient: Gradient, correction: Tensor | None) -> None:
        self._learning_rate = plan.learning_rate
        self._gradient = gradient
        self._correction = correction
        self.top_k = WarmTopK()  # which starts where the last one ended

    def step(self, weights: Tensor, *, at: Tensor | None = None) -> Tensor:
        """Make w - gamma (grad f_i(w) - h_i) of w, or with the gradient `at` another point."""
        gradient, decay = self.gradient(weights if at is None else at)
        return descend(weights, gradient, self._correction, self._learning_rate, self.top_k.expected, decay)

    def gradient(self, weights: Tensor) -> tuple[Tensor, float]:
        """Return the gradient at w, to be overwritten and corrected, and how much of w is to be added to it.

        That is nothing but where w is the last TopK, which is read again for the next one.
        """
        expected = self.top_k.expected
        if expected is None:
            return self._gradient(weights), 0.0
        return self._gradient.undecayed(weights, expected.norm_at_most_of(weights))

    def pruned(self, weights: Tensor, density: float) -> Tensor:
        """Return TopK(w) as a point for the next gradient, there where a network reads it."""
        return self.top_k(weights, density, out=self._gradient.point)


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """The section `algorithm` of an experiment: its options are the fields, its behaviour the methods."""

    plugin_package: ClassVar[str] = "strategies"
    default_schedule: ClassVar[ScheduleKind]
    has_control: ClassVar[bool] = False
    closes_with_average: ClassVar[bool] = False  # its controls: what rounding takes from a mean then counts
    keeps_zero_sum: ClassVar[bool] = True  # of its controls, where it has any; some methods show what is without that
    uploads_are_pruned: ClassVar[bool] = False  # to the plan's density: the server refuses any that is not
    uploads_are_alike: ClassVar[bool] = True  # those of honest clients; else nobody can be told by being unlike them
    uploads_are_near: ClassVar[bool] = True  # the model that a round starts from: given that, they are shorter
    is_dense: ClassVar[bool]

    learning_rate: Annotated[float, Range(above=0)]  # gamma
    density: Density = 0.1  # K / d, of the model that is evaluated and kept; 1 for a dense method, whatever is asked

    def __init_subclass__(cls, *, dense: bool = False) -> None:
        """Say with `class Name(Base, dense=True)` that a method never prunes; its subclasses do unless they say so."""
        super().__init_subclass__()
        cls.is_dense = dense

    @classmethod
    def has_option(cls, name: str) -> bool:
        """Say whether this method takes an option of that name."""
        return name in {field.name for field in fields(cls)}

    def __post_init__(self) -> None:
        if self.is_dense:
            object.__setattr__(self, "density", 1.0)

    # The client's half.

    def initial_memory(self, state: ServerState) -> ClientMemory:
        """Return what a client starts with, whenever it joins: no correction (h_i = 0), so that no sum changes."""
        return ClientMemory(control=torch.zeros_like(state.model) if self.has_control else None)

    def settle(self, memory: ClientMemory, average: Tensor) -> ClientMemory:
        """Close the pending round, in which the upload was counted, with its average; what is pending is used up."""
        if memory.pending is None:
            return memory
        closed = self.closed_control(memory, memory.pending, average)
        return replace(memory, control=closed, pending=None)

    def closed_control(self, memory: ClientMemory, pending: Pending, average: Tensor) -> Tensor | None:
        """Return the control as a counted round leaves it, which may take the place of the round's reference."""
        return memory.control

    def forget(self, memory: ClientMemory, state: ServerState) -> ClientMemory:
        """Return what a client still remembers at the start of a round; what goes, all clients forget at once."""
        return memory

    def correction(self, memory: ClientMemory, state: ServerState) -> Tensor | None:
        """Return what is taken from every local gradient against client drift."""
        return memory.control

    def centred(self, memory: ClientMemory, state: ServerState) -> Tensor | None:
        """Return what sums to zero over all members: mostly the correction itself."""
        return self.correction(memory, state)

    def starting_point(self, plan: RoundPlan, state: ServerState) -> Tensor:
        """Return where the local steps begin, and what they may write over; the model is given away for that."""
        return state.model

    def local_work(self, plan: RoundPlan, state: ServerState, memory: ClientMemory, gradient: Gradient) -> LocalWork:
        """Return what the local steps of a round are made of."""
        return LocalWork(plan, gradient, self.correction(memory, state))

    @abstractmethod
    def local_step(self, plan: RoundPlan, weights: Tensor, local: LocalWork) -> Tensor:
        """Take one local step with what `local` has; the weights may be overwritten."""

    def prune(self, plan: RoundPlan, weights: Tensor) -> Tensor:
        """Return w^, what is left of the local model before the upload."""
        return weights

    def finish(
        self, plan: RoundPlan, state: ServerState, memory: ClientMemory, weights: Tensor
    ) -> tuple[Upload, Tensor]:
        """Return the upload, and the reference with which the control will be closed: what was really sent.

        The weights may be overwritten.
        """
        sent = rounded(plan, self.prune(plan, weights), in_place=True)
        return Upload(model=sent), sent

    def uploaded_like(self, state: ServerState) -> ServerState:
        """Return a state with the sizes of what is uploaded; what the server shows all clients does not come back."""
        return replace(state, control=None)

    def answers(self, made_by: RoundPlan, asked: RoundPlan) -> bool:
        """Say whether an upload made by one plan answers another of the same round: who is asked may have changed."""
        return True

    # The server's half.

    def initial_state(self, state: ServerState) -> ServerState:
        """Return the server's state before the first round."""
        return state

    def round_density(self, round_number: int, rounds: int) -> float:
        """Return the density that a round's plan asks for."""
        return self.density

    @abstractmethod
    def aggregate(self, plan: RoundPlan, state: ServerState, mean: Upload, participation: float) -> ServerState:
        """Return the next state from the uniform mean of the uploads of this fraction of all members."""

    def senders(self, plan: RoundPlan, size: int) -> Tensor | None:
        """Return how many of the counted uploads have a say in each place; None: all of them, everywhere."""
        return None

    def holders(self, state: ServerState, counted: Collection[int]) -> Tensor | None:
        """Return how many members, last counted in these rounds, hold a control in each place; None: all of them."""
        return None

    def most_uploaded(self, plan: RoundPlan, size: int) -> int:
        """Return how many nonzero values the model of an upload may have."""
        return kept_count(plan.density, size) if self.uploads_are_pruned else size

    def evaluated(self, state: ServerState) -> ServerState:
        """Return what is evaluated and kept: every model is first pruned to the target density (Appendix A)."""
        return replace(state, model=top_k(state.model, self.density))


def client_round(
    algorithm: Algorithm,
    plan: RoundPlan,
    state: ServerState,
    memory: ClientMemory,
    objective: Objective,
    *,
    on_step: Callable[[int], None] = lambda _: None,
) -> tuple[Upload, ClientMemory]:
    """Run one round on one client, or on a batch of clients: start, local steps, prune, upload.

    The state's model is used up: it becomes the local one. `on_step` hears after each local step how many are done; on
    a GPU, how many it was told to do.
    """
    memory = algorithm.forget(memory, state)
    with objective.round(plan.round, state.buffers) as gradient:
        local = algorithm.local_work(plan, state, memory, gradient)
        weights = algorithm.starting_point(plan, state)
        for done in range(1, plan.local_steps + 1):
            weights = algorithm.local_step(plan, weights, local)
            on_step(done)
        buffers = gradient.buffers()
    upload, reference = algorithm.finish(plan, state, memory, weights)
    sent_buffers = None if buffers is None else rounded_statistics(plan, buffers)
    return replace(upload, buffers=sent_buffers), replace(memory, pending=Pending(plan=plan, reference=reference))


def server_round(
    algorithm: Algorithm, plan: RoundPlan, before: Checkpoint, uploads: RunningMean, participation: float
) -> tuple[ServerState, Remainder | None]:
    """Return the next state from a round's uploads, and what rounding took from their mean, for the next one."""
    # First of all: where there is no room for it, nothing is used up, and it can be tried again.
    rest = Remainder(before.state.model.shape[-1]) if algorithm.closes_with_average else None
    senders = algorithm.senders(plan, before.state.model.shape[-1])
    mean = uploads.mean(before.rounded_off, rest, senders)
    state = algorithm.aggregate(plan, before.state, mean, participation)
    most_senders = uploads.clients if senders is None else int(senders.max())
    return replace(state, unit=plan.step / most_senders), rest
