"""The Flower strategy that runs any of the algorithms in this package.

It is a `flwr.serverapp.strategy.Strategy` like Flower's own, so it fits into an app of one's own; see docs/flower.md.
Two things differ from them. The mean is uniform, never weighted by examples: weights would break the zero sum of the
control variates. And clients are known by names of their own, not by the connection they happen to have, because a
message says of which round the client's upload was counted last.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from common.codec.payload import largest_bytes
from common.errors import DecodeError, MessageError, UserError
from common.experiment.experiment import Experiment
from common.learning.task import OwnDataProblem, mean_over_examples
from common.messages.flower import CLIENT_FAILED, CLIENT_FORGOT
from common.messages.messages import (
    AUDIT,
    RECENTRE,
    Recentring,
    Report,
    pack_order,
    pack_recentring,
    pack_state,
    unpack_control,
    unpack_evaluation,
    unpack_report,
    unpack_state,
)
from common.messages.pieces import payload_bytes
from common.rounds.ledger import Checkpoint, Ledger
from common.rounds.mean import ControlSum, RunningMean
from common.rounds.records import BITS_A_VALUE, PeakMemory, RoundRecord, Traffic
from common.rounds.state import ReceivedUpload, ServerState
from common.storage.disk import when_there_is_room
from common.vectors.divergence import refuse_divergence
from common.vectors.sparsity import density_of
from strategies.flower.exchange import MessageBytes, PromptGrid, replies_to, send, traffic_of
from strategies.flower.roster import Roster, Say, short
from strategies.flower.shelf import Shelf

FIRST_PAUSE_SECONDS = 0.5  # before a round is asked for again
LONGEST_PAUSE_SECONDS = 30.0
RETURN_SECONDS = 60.0  # a client that lost the server tries again in less
FORGOT = "has lost its control variate"


class FederationError(UserError):
    """The clients cannot do what the run asks of them."""


@dataclass
class Tally:
    """What a round has brought so far."""

    mean: RunningMean = field(default_factory=RunningMean)
    counted: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # name: why; it would not help to ask again
    absent: dict[str, str] = field(default_factory=dict)  # name: why; it may be back later
    values: dict[str, int] = field(default_factory=dict)  # name: that were uploaded, as the paper counts
    peaks: dict[str, PeakMemory] = field(default_factory=dict)
    longest_training_seconds: float = 0.0

    def add(self, report: Report[ReceivedUpload]) -> None:
        """Count one upload."""
        self.values[report.client] = self.mean.add(report.upload)
        self.counted.append(report.client)
        self.peaks[report.client] = report.peak
        self.longest_training_seconds = max(self.longest_training_seconds, report.seconds)


class AlgorithmStrategy(Strategy):
    """Runs an experiment's algorithm on the clients of a Flower grid.

    A round ends when all clients have answered, or at the deadline with at least `minimum_clients`; with fewer it is
    asked for again. A client that was counted in none of `evict_after_rounds` rounds is given up, and comes back as a
    new one. An upload with a model beyond `largest_norm` is refused. Where clients have `own_data`, they measure the
    metrics. `on_round` is called with every round's record, before anything of the next one is sent, and
    `on_recentring` where the ledger has changed between two rounds: if they keep `checkpoint`, a new strategy can go on
    from there. `say` hears what an operator should know. What clients do is in the experiment alone: the ConfigRecords
    that Flower's interface passes along are not sent.
    """

    def __init__(
        self,
        experiment: Experiment,
        initial: ServerState,
        *,
        minimum_clients: int | None = None,
        deadline_seconds: float | None = None,
        evict_after_rounds: int | None = None,
        largest_norm: float = math.inf,
        evaluate_on_clients: bool = False,
        own_data: OwnDataProblem | None = None,
        audit_every_rounds: int | None = None,
        resume_from: Checkpoint | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        on_recentring: Callable[[], None] | None = None,
        say: Say = print,
    ) -> None:
        if minimum_clients is not None and minimum_clients > experiment.clients:
            raise UserError(f"a round cannot have at least {minimum_clients} of {experiment.clients} clients")
        self.experiment = experiment
        self.algorithm = experiment.algorithm
        self._shelf = Shelf()
        self.state = self._shelf.keep_state(self.algorithm.initial_state(initial))
        self.roster = Roster(experiment.clients, say)
        self._minimum_clients = minimum_clients or experiment.clients
        self._deadline_seconds = deadline_seconds
        self._evict_after_rounds = evict_after_rounds
        self._largest_norm = largest_norm
        self._evaluate_on_clients = evaluate_on_clients
        self._own_data = own_data
        self._audit_every_rounds = audit_every_rounds
        self._on_round = on_round
        self._on_recentring = on_recentring
        self._say = say
        self._ledger = Ledger()
        self._payload_bytes_down: Counter[str] = Counter()  # of this round, all attempts at it
        self._payload_bytes_up: Counter[str] = Counter()
        self._bits_up = 0.0
        self._rounds_done = 0
        self._tally = Tally()
        self._given_up: dict[str, str] = {}  # name: why
        self._wanted = ""  # who must be back before the controls sum to zero again
        self._asked: dict[str, str] = {}  # the messages of the last exchange -> the client's name
        self._arrays: ArrayRecord | None = None  # what goes down next, in `start`

        if resume_from is not None:
            self.state, self._rounds_done = self._shelf.keep_state(resume_from.state), resume_from.round
            averages = {
                one: self.state.model if average is resume_from.state.model else self._shelf.keep(average)
                for one, average in resume_from.ledger.averages.items()
            }
            self._ledger, self._bits_up = replace(resume_from.ledger, averages=averages), resume_from.bits_up

    @property
    def checkpoint(self) -> Checkpoint:
        """Return what it takes to go on after the last round."""
        return Checkpoint(round=self._rounds_done, state=self.state, ledger=self._ledger, bits_up=self._bits_up)

    @property
    def initial_arrays(self) -> ArrayRecord:
        """Return the state before the first round, or before the one to go on with, for `start`."""
        if self._arrays is None:
            self._arrays = self._packed()
        return self._arrays

    def summary(self) -> None:
        """Say what is about to run."""
        name = type(self.algorithm).__name__
        if self._audit_every_rounds and not self.algorithm.has_control:
            self._say(f"{name} has no control variates: there is nothing to audit")
        self._say(f"{self.experiment.name}: {name}, {self.experiment.clients} clients, {self.experiment.rounds} rounds")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the plan and the state, one message a client."""
        for name, order in self._orders(server_round, arrays, MessageType.TRAIN):
            if name not in self._ledger.awaiting:  # until its control is re-centred
                self._payload_bytes_down[name] += payload_bytes(order.content)
                yield order

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode and add each upload as it comes; the next state, or None where too few were counted."""
        tally = self._tally = Tally(RunningMean(self._largest_norm))
        for reply in replies:
            self._count(reply, self._asked.get(reply.metadata.reply_to_message_id, ""), server_round)
            del reply  # an upload may be large: it is gone before the next one comes
        if len(tally.counted) < self._minimum_clients:
            return None, None
        plan = self.experiment.plan(server_round)
        participation = len(tally.counted) / len(self._ledger.counted.keys() | set(tally.counted))
        self.state = self._kept(self.algorithm.aggregate(plan, self.state, tally.mean.mean(), participation))
        self._ledger = self._ledger.after_round(server_round, tally.counted, self.state.model)
        self._arrays = None  # the old ones are gone before there are new ones
        return self._packed(), MetricRecord({"training-seconds": tally.longest_training_seconds})

    def _kept(self, state: ServerState) -> ServerState:
        return when_there_is_room(lambda: self._shelf.keep_state(state), self._say)

    def _packed(self, average: Tensor | None = None) -> ArrayRecord:
        return when_there_is_room(lambda: pack_state(self.state, average), self._say)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the model as it would be kept, if clients are asked for their loss."""
        own = self._own_data is not None and self.experiment.is_evaluated(server_round)
        if not (self._evaluate_on_clients or own):
            return
        content = pack_order(pack_state(self.algorithm.evaluated(self.state)), self.experiment.plan(server_round), 0)
        for node in self.roster.nodes.values():
            yield Message(content, node, MessageType.EVALUATE, group_id=str(server_round))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean of the clients' losses, the paper's objective, and the metrics on their held-out data."""
        told = []
        for reply in replies:
            with suppress(MessageError):  # a client that does not answer this is none to refuse in training
                if reply.has_content():
                    told.append(unpack_evaluation(reply.content))
        if not told:
            return None
        metrics = {"train_loss": sum(one.loss for one in told) / len(told)}
        if (own := self._own_data) is not None:
            measured = [one.held_out for one in told if one.held_out.means.keys() == own.measured]
            metrics |= own.summarize(mean_over_examples(measured))
        return MetricRecord(dict(metrics))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds; `timeout` is the deadline of a round where none was given."""
        self.summary()
        if isinstance(grid, PromptGrid):
            grid.limit_replies(largest_bytes(self.state))
        if initial_arrays is not self._arrays:
            self.state = self._shelf.keep_state(unpack_state(initial_arrays, self.state))
            self._arrays = initial_arrays
        del initial_arrays
        result = Result()
        deadline = self._deadline_seconds or timeout
        if not self._rounds_done:
            self.roster.gather(grid, self.experiment.clients)
        elif self._rounds_done < num_rounds:  # most are on their way back, but one may be gone for good
            self.roster.gather(grid, len(self._ledger.counted), self._minimum_clients, RETURN_SECONDS)
        for number in range(self._rounds_done + 1, num_rounds + 1):
            started, traffic = time.perf_counter(), traffic_of(grid)
            density_down = density_of(self.state.model).item()
            self._train(grid, number, train_config or ConfigRecord(), deadline)
            seconds = time.perf_counter() - started
            traffic = traffic_of(grid) - traffic
            metrics: dict[str, float] = {}
            assert self._arrays is not None
            questions = self.configure_evaluate(number, self._arrays, evaluate_config or ConfigRecord(), grid)
            if on_clients := self.aggregate_evaluate(number, self._exchange(grid, questions, deadline)):
                result.evaluate_metrics_clientapp[number] = on_clients
                metrics |= _numbers(on_clients)
            if evaluate_fn and (here := evaluate_fn(number, self._arrays)):
                result.evaluate_metrics_serverapp[number] = here
                metrics |= _numbers(here)
            self._report(number, seconds, density_down, traffic, metrics, self._audit(grid, number, deadline))
        result.arrays = self._arrays
        return result

    def _train(self, grid: Grid, number: int, config: ConfigRecord, deadline: float) -> None:
        """Ask for a round until enough clients were counted in it."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            self.roster.update(grid)
            self._evict(number)
            self._recentre(grid, number, deadline)
            assert self._arrays is not None
            orders = self.configure_train(number, self._arrays, config, grid)
            new, _ = self.aggregate_train(number, self._exchange(grid, orders, deadline))
            del orders
            if new is not None:
                self._arrays = new
                return
            refused, absent = self._tally.refused, self._tally.absent
            if len(self.roster.nodes) - len(refused) < self._minimum_clients and refused:
                raise FederationError(f"round {number} cannot be done: {_listed(refused)}")
            reasons = _listed({**absent, **refused})
            self._say(
                f"round {number}: only {len(self._tally.counted)} of at least {self._minimum_clients} clients "
                f"answered{f' ({reasons})' if reasons else ''}; asking again"
            )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            self.roster.gather(grid, self._minimum_clients)

    def _evict(self, number: int) -> None:
        """Give up members that were away for too long."""
        if self._evict_after_rounds is not None:
            for name in self._ledger.overdue(number, self._evict_after_rounds):
                self._give_up(name, f"was not counted in {self._evict_after_rounds} rounds")

    def _give_up(self, name: str, why: str) -> None:
        """Count no longer on a member's control variate."""
        self._ledger = self._ledger.without(name)
        self._given_up[name] = f"it {why}, and was given up"
        if self.algorithm.has_control:
            self._say(f"{name} {why}: it starts afresh, and the others will be re-centred when all of them are here")

    def _recentre(self, grid: Grid, number: int, deadline: float) -> None:
        """Bring the sum of the controls back to zero where a member has gone with its own."""
        if not self.algorithm.has_control:
            return
        if self._ledger.off_centre and not self._ledger.awaiting:
            controls = self._controls(grid, number, deadline)
            if controls is None:
                self._say_who_is_wanted()
                return  # again before the next round, when all may be here
            self._ledger = self._ledger.recentred(controls.mean())
            if self._on_recentring:
                self._on_recentring()
        for name, _ in self._answers(grid, dict(self._recentrings()), deadline):
            self._ledger = self._ledger.delivered(name)

    def _say_who_is_wanted(self) -> None:
        """Tell, when it changes, for whose return the others wait to be re-centred."""
        wanted = ", ".join(sorted(self._ledger.counted.keys() - self.roster.nodes.keys()))
        if wanted and wanted != self._wanted:
            self._say(f"the control variates do not sum to zero until {wanted} is back, or given up (--evict-after)")
        self._wanted = wanted

    def _recentrings(self) -> Iterator[tuple[str, Message]]:
        for name in sorted(self._ledger.awaiting & self.roster.nodes.keys()):
            assert self._ledger.shift is not None
            recentring = Recentring(
                number=self._ledger.recentrings,
                counted=self._ledger.counted[name],
                shift=self._ledger.shift,
                average=self._ledger.average_for(name),
            )
            kind = f"{MessageType.QUERY}.{RECENTRE}"
            yield name, Message(pack_recentring(recentring), self.roster.nodes[name], kind)

    def _controls(self, grid: Grid, number: int, deadline: float) -> ControlSum | None:
        """Ask all members for their controls as this round finds them; None where one does not answer."""
        assert self._arrays is not None
        orders = self._orders(number, self._arrays, f"{MessageType.QUERY}.{AUDIT}")
        questions = {name: order for name, order in orders if name in self._ledger.counted}
        controls = ControlSum()
        if questions.keys() == self._ledger.counted.keys():
            for name, answer in self._answers(grid, questions, deadline):
                with suppress(MessageError):
                    self._add_control(controls, name, unpack_control(answer, self.state), number)
        return controls if controls.clients and controls.clients == len(self._ledger.counted) else None

    def _add_control(self, controls: ControlSum, name: str, control: Tensor, number: int) -> None:
        """Add a control, unless it is beyond what so many rounds can have made of models within the bound."""
        if float(control.double().norm()) > 4 * number * self._largest_norm / self.algorithm.learning_rate:
            self._give_up(name, "shows a control variate beyond all bounds")
        else:
            controls.add(control)

    def _answers(
        self, grid: Grid, questions: Mapping[str, Message], deadline: float
    ) -> Iterator[tuple[str, RecordDict]]:
        """Ask clients, and yield who answers what; one that has lost its control is no longer a member."""
        for reply in self._exchange(grid, questions.values(), deadline):
            name = self._asked[reply.metadata.reply_to_message_id]
            if reply.has_content():
                yield name, reply.content
            elif reply.error.code == CLIENT_FORGOT:
                self._give_up(name, FORGOT)
            else:
                self._say(f"{name}: {short(reply.error.reason)}")

    def _audit(self, grid: Grid, number: int, deadline: float) -> float | None:
        """Return |mean of h_i| / mean of |h_i|, as the next round will find the h_i."""
        if not (self._audit_every_rounds and self.algorithm.has_control) or number % self._audit_every_rounds:
            return None
        controls = None if self._ledger.awaiting else self._controls(grid, number + 1, deadline)
        if controls is None or self._ledger.off_centre:
            self._say(f"round {number}: no audit, as some members do not answer or are not re-centred yet")
            return None
        return controls.relative_norm()

    def _exchange(self, grid: Grid, messages: Iterable[Message], timeout_seconds: float) -> Iterator[Message]:
        """Send messages and yield the replies as they come."""
        asked = send(grid, messages)
        names = {node: name for name, node in self.roster.nodes.items()}
        # By the message, not by the sender: where a node is gone, the answer is Flower's own.
        self._asked = {one: names.get(node, "") for one, node in asked.items()}
        self._shelf.let_go()
        yield from replies_to(grid, asked, timeout_seconds, partial(self._follow, grid))

    def _follow(self, grid: Grid, waiting: Iterable[str]) -> None:
        """Ask who is back by a new connection there: the old one is found dead much later, in up to a minute."""
        if isinstance(grid, PromptGrid):
            self.roster.update(grid)
            for one in waiting:
                if (node := self.roster.nodes.get(self._asked[one])) is not None:
                    grid.redirect(one, node)

    def _orders(self, number: int, arrays: ArrayRecord, kind: str) -> Iterator[tuple[str, Message]]:
        """Yield each client's name and what it is told at the start of a round: plan, state, its last counted round."""
        plan = self.experiment.plan(number)
        for name, node in self.roster.nodes.items():
            counted, average = self._ledger.counted.get(name, 0), self._ledger.average_for(name)
            missed_some = average is not None and counted < number - 1  # else the average is the state's own model
            own = self._packed(average) if missed_some else arrays
            yield name, Message(pack_order(own, plan, counted), node, kind, group_id=str(number))

    def _count(self, reply: Message, name: str, number: int) -> None:
        """Add a reply to the tally, or note why not."""
        if reply.has_error():
            reasons = self._tally.refused if reply.error.code == CLIENT_FAILED else self._tally.absent
            reasons[name] = short(reply.error.reason)
            if reply.error.code == CLIENT_FORGOT:
                self._give_up(name, FORGOT)
            return
        try:
            self._payload_bytes_up[name] += payload_bytes(reply.content)
            plan, size = self.experiment.plan(number), self.state.model.shape[-1]
            report = unpack_report(reply.content, self.state, self.algorithm.most_uploaded(plan, size))
            if (report.client, report.round) != (name, number):
                raise MessageError(f"an upload of {report.client!r} for round {report.round}")
            if name not in self._tally.counted:
                self._tally.add(report)
        except (MessageError, DecodeError) as error:
            self._tally.refused[name] = str(error)

    def _report(
        self,
        number: int,
        seconds: float,
        density_down: float,
        traffic: MessageBytes,
        metrics: dict[str, float],
        control_sum_norm: float | None,
    ) -> None:
        tally, plan = self._tally, self.experiment.plan(number)
        clients = len(tally.counted)
        self._bits_up += BITS_A_VALUE * tally.mean.values / clients
        refuse_divergence(number, self.state.model, metrics.values())
        reasons = {
            **self._given_up,
            **dict.fromkeys(self._ledger.counted, "it has left"),
            **dict.fromkeys(self.roster.nodes, "no answer before the deadline"),
            **tally.absent,
            **tally.refused,
        }
        record = RoundRecord(
            round=number,
            local_steps=plan.local_steps,
            clients_counted=clients,
            clients_missing={name: why for name, why in reasons.items() if name and name not in tally.counted},
            paper_bits_up=self._bits_up,
            density_up=tally.mean.model_values / (clients * self.state.model.shape[-1]),
            density_down=density_down,
            control_sum_norm=control_sum_norm,
            seconds=seconds,
            seconds_by_phase={"training": tally.longest_training_seconds},
            payload_bytes_up=self._payload_bytes_up.total(),
            payload_bytes_down=self._payload_bytes_down.total(),
            message_bytes_down=traffic.down or None,
            message_bytes_up=traffic.up or None,
            memory_by_client=dict(sorted(tally.peaks.items())),
            traffic_by_client={name: self._traffic_of(name, traffic) for name in sorted(tally.counted)},
            metrics=metrics,
        )
        for name in tally.counted:
            self._given_up.pop(name, None)
        self._payload_bytes_up.clear()
        self._payload_bytes_down.clear()
        self._rounds_done = number
        if self._on_round:
            self._on_round(record)

    def _traffic_of(self, name: str, messages: MessageBytes) -> Traffic:
        down, up = messages.by_node.get(self.roster.nodes.get(name, 0), (None, None))
        return Traffic(
            paper_bits_up=BITS_A_VALUE * self._tally.values[name],
            payload_bytes_up=self._payload_bytes_up[name],
            payload_bytes_down=self._payload_bytes_down[name],
            message_bytes_up=up,
            message_bytes_down=down,
        )


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in reasons.items())


def _numbers(metrics: MetricRecord) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
