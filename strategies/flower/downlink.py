"""What goes down to clients: the state, packed once for all of them, and what each is told with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from flwr.app import ArrayRecord, Message
from torch import Tensor

from common.codec.given import Given, given_to_uploads
from common.errors import UserError
from common.experiment.experiment import Experiment
from common.messages.content import payload_in
from common.messages.messages import message_to, pack_order, pack_state, unpack_state
from common.rounds.history import History
from common.rounds.ledger import Checkpoint, Ledger
from common.rounds.state import RoundPlan, ServerState
from common.say import Say
from common.storage.disk import when_there_is_room
from strategies.flower.shelf import Shelf


class Downlink:
    """The state after the last round, on the shelf and packed; where a disk is full it waits until it is not."""

    def __init__(self, experiment: Experiment, start: Checkpoint, say: Say) -> None:
        self._experiment = experiment
        self._say = say
        self._shelf = Shelf()
        self._arrays: ArrayRecord | None = None
        self._is_asked_for = False
        self._given: Given | None = None  # the state's model, once somebody has asked for it
        self._before: Given | None = None  # that of the round before
        self._plan: RoundPlan | None = None
        self._kept: dict[int, int] = {}  # by node: the digest of the model that its client keeps
        self.now = when_there_is_room(lambda: self._on_shelf(start), say)

    @property
    def arrays(self) -> ArrayRecord:
        """Return the state as it goes down."""
        if self._arrays is None:
            self._arrays = self._packed(self.now.state)
        return self._arrays

    @property
    def given(self) -> Given | None:
        """Return the state's model, which uploads are given."""
        if not self._is_asked_for:
            plan = self._plan or self.plan(self.now.round + 1)
            given = given_to_uploads(plan, self.now.state.model)
            self._given = when_there_is_room(lambda: self._shelf.keep_given(given), self._say)
            self._is_asked_for = True
        return self._given

    def plan(self, number: int) -> RoundPlan:
        """Return the plan of a round that starts from the state."""
        if self._plan is None or self._plan.round != number:
            self._plan = self._experiment.plan(number, self.now.state.model)
        return self._plan

    def keeps(self, node: int) -> None:
        """Note that a client keeps the state's model, and the next one can be given it."""
        if self.given is not None:
            self._kept[node] = self.given.digest

    def forget(self, node: int) -> None:
        """Send a client the next model whole, whatever it keeps."""
        self._kept.pop(node, None)

    def take(self, arrays: ArrayRecord) -> None:
        """Go on from arrays that are not ours, which Flower's `start` may be given."""
        if arrays is not self._arrays:
            if self.now.round:
                raise UserError("a run that goes on starts from its own arrays: strategy.initial_arrays")
            state, _ = unpack_state(payload_in(arrays), self.now.state)
            self.advance(replace(self.now, state=state))
            self._arrays = arrays

    def advance(self, after: Checkpoint) -> None:
        """Go on to the state after a round."""
        self._before, self._given, self._is_asked_for, self._plan = self._given, None, False, None
        state = when_there_is_room(lambda: self._shelf.keep_state(after.state), self._say)
        self.now = replace(after, state=state)
        self._arrays = None  # the old ones are gone before there are new ones

    def let_go(self) -> None:
        """Let go of the memory in which the state was read: while uploads come in, nobody looks at it."""
        self._shelf.let_go()

    def orders(
        self, asked: Literal["train", "audit"], plans: dict[str, RoundPlan], ledger: Ledger, nodes: dict[str, int]
    ) -> dict[str, Message]:
        """Return what clients are told at the start of a round: their plans, the state, what each control has seen."""
        packed: dict[tuple[int, bool], ArrayRecord] = {}  # most clients were counted in the same round
        orders = {}
        for name, plan in plans.items():
            history, given = ledger.history_of(name), self._given_to(nodes[name]) if asked == "train" else None
            what = history.counted, given is not None
            if what not in packed:
                average = ledger.average_for(name) if history.counted < self.now.round else None  # else the state's own
                is_plain = average is None and given is None
                packed[what] = self.arrays if is_plain else self._packed(self.now.state, average, given)
            content = pack_order(asked, packed[what], plan, history, given)
            orders[name] = message_to(nodes[name], asked, content, str(plan.round))
        return orders

    def _given_to(self, node: int) -> Given | None:
        """Return the model of the round before, if a client keeps it."""
        is_kept = self._before is not None and self._kept.get(node) == self._before.digest
        return self._before if is_kept else None

    def evaluations(self, number: int, nodes: dict[str, int]) -> dict[str, Message]:
        """Return the model as it would be kept, for each client to measure."""
        arrays = self._packed(self._experiment.algorithm.evaluated(self.now.state))
        content = pack_order("evaluate", arrays, self._experiment.plan(number), History())
        return {name: message_to(node, "evaluate", content, str(number)) for name, node in nodes.items()}

    def _packed(self, state: ServerState, average: Tensor | None = None, given: Given | None = None) -> ArrayRecord:
        return when_there_is_room(lambda: pack_state(state, average, given), self._say)

    def _on_shelf(self, checkpoint: Checkpoint) -> Checkpoint:
        state = self._shelf.keep_state(checkpoint.state)
        averages = {
            number: state.model if average is checkpoint.state.model else self._shelf.keep(average)
            for number, average in checkpoint.ledger.averages.items()
        }
        return replace(checkpoint, state=state, ledger=replace(checkpoint.ledger, averages=averages))
