"""What goes down to clients: the state, packed once for all of them, and what each is told with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from flwr.app import ArrayRecord, Message
from torch import Tensor

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
        self.now = when_there_is_room(lambda: self._on_shelf(start), say)

    @property
    def arrays(self) -> ArrayRecord:
        """Return the state as it goes down."""
        if self._arrays is None:
            self._arrays = self._packed(self.now.state)
        return self._arrays

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
        arrays: dict[int, ArrayRecord] = {}  # most clients were counted in the same round
        orders = {}
        for name, plan in plans.items():
            history, average = ledger.history_of(name), ledger.average_for(name)
            if history.counted not in arrays:
                missed_some = average is not None and history.counted < self.now.round  # else it is the state's own
                arrays[history.counted] = self._packed(self.now.state, average) if missed_some else self.arrays
            content = pack_order(asked, arrays[history.counted], plan, history)
            orders[name] = message_to(nodes[name], asked, content, str(plan.round))
        return orders

    def evaluations(self, number: int, nodes: dict[str, int]) -> dict[str, Message]:
        """Return the model as it would be kept, for each client to measure."""
        arrays = self._packed(self._experiment.algorithm.evaluated(self.now.state))
        content = pack_order("evaluate", arrays, self._experiment.plan(number), History())
        return {name: message_to(node, "evaluate", content, str(number)) for name, node in nodes.items()}

    def _packed(self, state: ServerState, average: Tensor | None = None) -> ArrayRecord:
        return when_there_is_room(lambda: pack_state(state, average), self._say)

    def _on_shelf(self, checkpoint: Checkpoint) -> Checkpoint:
        state = self._shelf.keep_state(checkpoint.state)
        averages = {
            number: state.model if average is checkpoint.state.model else self._shelf.keep(average)
            for number, average in checkpoint.ledger.averages.items()
        }
        return replace(checkpoint, state=state, ledger=replace(checkpoint.ledger, averages=averages))
