"""The Flower strategy that runs any of the algorithms in this package.

It is a `flwr.serverapp.strategy.Strategy` like Flower's own, so it fits into an app of one's own; see docs/flower.md.
Two things differ from them. The mean is uniform, never weighted by examples: weights would break the zero sum of the
control variates. And clients are known by names of their own, not by the connection they happen to have, because a
message says of which round the client's upload was counted last.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from common.aggregate import ControlSum, RunningMean
from common.bytestream import DecodeError
from common.divergence import refuse_divergence
from common.errors import UserError
from common.experiment import Experiment
from common.flower import CLIENT_FAILED
from common.payload import largest_bytes
from common.shelf import Shelf
from common.sparsity import density_of
from common.types import BITS_A_VALUE, Checkpoint, ReceivedUpload, RoundRecord, ServerState, Traffic
from common.wire import (
    AUDIT,
    MessageError,
    Report,
    pack_order,
    pack_state,
    payload_bytes,
    unpack_control,
    unpack_evaluation,
    unpack_introduction,
    unpack_report,
    unpack_state,
)

SHORTEST_WAIT_SECONDS = 0.02
LONGEST_WAIT_SECONDS = 1.0
SECONDS_BETWEEN_NOTICES = 10.0
QUESTION_SECONDS = 120.0  # a client may load its data before it answers

Say = Callable[[str], None]


@runtime_checkable
class PromptGrid(Protocol):
    """What our own grid can do beyond Flower's: tell when a reply may be there, limit and count bytes."""

    def wait_for_reply(self, seconds: float) -> None:
        """Return when some reply may be complete, or after this time."""

    def forget(self, message_ids: set[str]) -> None:
        """Give up waiting for replies to these messages."""

    def limit_replies(self, largest_bytes: int) -> None:
        """Refuse replies with a larger payload."""

    def traffic_bytes(self) -> tuple[int, int]:
        """Return what Flower's messages took so far, down and up."""

    def traffic_bytes_by_node(self) -> dict[int, tuple[int, int]]:
        """Return the same of each node for which it is known."""


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
    longest_training_seconds: float = 0.0

    def add(self, report: Report[ReceivedUpload]) -> None:
        """Count one upload."""
        self.values[report.client] = self.mean.add(report.upload)
        self.counted.append(report.client)
        self.longest_training_seconds = max(self.longest_training_seconds, report.seconds)


class Roster:
    """Who takes part: clients by name, and the nodes behind which they are now."""

    def __init__(self, most_clients: int, say: Say) -> None:
        self.nodes: dict[str, int] = {}
        self._most_clients = most_clients
        self._say = say
        self._asked: dict[str, tuple[int, float]] = {}  # message id -> node, when
        self._known: set[int] = set()

    def update(self, grid: Grid) -> None:
        """Ask new nodes for their client's name, and drop those that have gone."""
        online = set(grid.get_node_ids())
        for name in [name for name, node in self.nodes.items() if node not in online]:
            self._say(f"{name} has left")
            del self.nodes[name]
        self._give_up_questions(grid)
        new = sorted(online - self._known)
        self._known = online
        questions = [Message(RecordDict(), node, MessageType.QUERY) for node in new]
        sent = zip(grid.push_messages(questions), new, strict=True)
        self._asked |= {one: (node, time.monotonic()) for one, node in sent if one}
        for reply in grid.pull_messages(list(self._asked)) if self._asked else ():
            node, _ = self._asked.pop(reply.metadata.reply_to_message_id)
            self._welcome(node, reply)

    def gather(self, grid: Grid, count: int) -> None:
        """Wait until that many clients are there, and say who is missing while they are not."""
        next_notice = time.monotonic() + 1.0
        while True:
            self.update(grid)
            if len(self.nodes) >= count:
                return
            if time.monotonic() >= next_notice:
                next_notice = time.monotonic() + SECONDS_BETWEEN_NOTICES
                self._say(self._missing(count))
            if isinstance(grid, PromptGrid):
                grid.wait_for_reply(0.1)
            else:
                time.sleep(0.5)

    def _welcome(self, node: int, reply: Message) -> None:
        if reply.has_error():
            self._say(f"a client cannot take part: {reply.error.reason}")
            return
        try:
            name = unpack_introduction(reply.content)
        except MessageError as error:
            self._say(f"node {node} does not answer as one of our clients: {error}")
            return
        if name not in self.nodes and len(self.nodes) >= self._most_clients:
            self._say(f"{name} is left out: all {self._most_clients} clients are here")
            return
        if self.nodes.get(name, node) != node:
            # Most likely it lost its connection and is back before the old one was found dead.
            self._say(f"{name} has joined again, by a new connection; the old one is no longer used")
        self.nodes[name] = node

    def _give_up_questions(self, grid: Grid) -> None:
        """Ask again who did not answer for long: the question may have been lost with a broken connection."""
        late = {one for one, (_, then) in self._asked.items() if time.monotonic() - then > QUESTION_SECONDS}
        for one in late:
            self._known.discard(self._asked.pop(one)[0])
        if late and isinstance(grid, PromptGrid):
            grid.forget(late)

    def _missing(self, count: int) -> str:
        here = sorted(self.nodes)
        usual = [f"client-{index}" for index in range(count)]
        absent = [name for name in usual if name not in self.nodes]
        who = f" (missing: {', '.join(absent)})" if set(here) <= set(usual) else ""
        return f"waiting for clients: {len(here)} of {count} are here{who}"


@dataclass(frozen=True)
class MessageBytes:
    """What Flower's messages took: altogether, and of the nodes for which that is known."""

    down: int = 0
    up: int = 0
    by_node: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __sub__(self, before: MessageBytes) -> MessageBytes:
        """Return what came since."""
        by_node = {}
        for node, (down, up) in self.by_node.items():
            down_then, up_then = before.by_node.get(node, (0, 0))
            by_node[node] = (down - down_then, up - up_then)
        return MessageBytes(self.down - before.down, self.up - before.up, by_node)


class AlgorithmStrategy(Strategy):
    """Runs an experiment's algorithm on the clients of a Flower grid.

    A round ends when all clients have answered, or at the deadline with at least `minimum_clients`; with fewer it is
    asked for again. `on_round` is called with every round's record, before anything of the next one is sent: if it
    keeps `checkpoint`, a new strategy can go on from there. `say` hears what an operator should know. What clients do
    is in the experiment alone: the ConfigRecords that Flower's interface passes along are not sent.
    """

    def __init__(
        self,
        experiment: Experiment,
        initial: ServerState,
        *,
        minimum_clients: int | None = None,
        deadline_seconds: float | None = None,
        evaluate_on_clients: bool = False,
        audit_every_rounds: int | None = None,
        resume_from: Checkpoint | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
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
        self._evaluate_on_clients = evaluate_on_clients
        self._audit_every_rounds = audit_every_rounds
        self._on_round = on_round
        self._say = say
        self._counted: dict[str, int] = {}  # name -> the last round in which it was counted
        self._averages: dict[int, Tensor] = {}  # of rounds that some counted client may not have settled yet
        self._payload_bytes_down: Counter[str] = Counter()  # of this round, all attempts at it
        self._payload_bytes_up: Counter[str] = Counter()
        self._bits_up = 0.0
        self._rounds_done = 0
        self._tally = Tally()
        self._arrays: ArrayRecord | None = None  # what goes down next, in `start`

        if resume_from is not None:
            self.state, self._rounds_done = self._shelf.keep_state(resume_from.state), resume_from.round
            self._counted = dict(resume_from.counted)
            self._averages = {
                one: self.state.model if average is resume_from.state.model else self._shelf.keep(average)
                for one, average in resume_from.averages.items()
            }
            self._bits_up = resume_from.bits_up

    @property
    def checkpoint(self) -> Checkpoint:
        """Return what it takes to go on after the last round."""
        return Checkpoint(
            round=self._rounds_done,
            state=self.state,
            counted=dict(self._counted),
            averages=dict(self._averages),
            bits_up=self._bits_up,
        )

    @property
    def initial_arrays(self) -> ArrayRecord:
        """Return the state before the first round, or before the one to go on with, for `start`."""
        if self._arrays is None:
            self._arrays = pack_state(self.state)
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
            self._payload_bytes_down[name] += payload_bytes(order.content)
            yield order

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode and add each upload as it comes; the next state, or None where too few were counted."""
        tally = self._tally = Tally()
        names = {node: name for name, node in self.roster.nodes.items()}
        for reply in replies:
            self._count(reply, names.get(reply.metadata.src_node_id, ""), server_round)
            del reply  # an upload may be large: it is gone before the next one comes
        if len(tally.counted) < self._minimum_clients:
            return None, None
        plan = self.experiment.plan(server_round)
        participation = len(tally.counted) / self.experiment.clients
        mean = tally.mean.mean()
        self.state = self._shelf.keep_state(self.algorithm.aggregate(plan, self.state, mean, participation))
        del mean
        self._remember(server_round, tally.counted)
        self._arrays = None  # the old ones are gone before there are new ones
        return pack_state(self.state), MetricRecord({"training-seconds": tally.longest_training_seconds})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the model as it would be kept, if clients are asked for their loss."""
        if not self._evaluate_on_clients:
            return
        content = pack_order(pack_state(self.algorithm.evaluated(self.state)), self.experiment.plan(server_round), 0)
        for node in self.roster.nodes.values():
            yield Message(content, node, MessageType.EVALUATE, group_id=str(server_round))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean of the clients' losses: the objective of the paper."""
        losses = []
        for reply in replies:
            with suppress(MessageError):  # a client that does not answer this is none to refuse in training
                if reply.has_content():
                    losses.append(unpack_evaluation(reply.content))
        return MetricRecord({"train_loss": sum(losses) / len(losses)}) if losses else None

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
        if self._rounds_done < num_rounds:
            self.roster.gather(grid, self.experiment.clients)
        for number in range(self._rounds_done + 1, num_rounds + 1):
            started, traffic = time.perf_counter(), _traffic(grid)
            density_down = density_of(self.state.model).item()
            self._train(grid, number, train_config or ConfigRecord(), deadline)
            seconds = time.perf_counter() - started
            traffic = _traffic(grid) - traffic
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
        while True:
            self.roster.update(grid)
            assert self._arrays is not None
            orders = self.configure_train(number, self._arrays, config, grid)
            new, _ = self.aggregate_train(number, self._exchange(grid, orders, deadline))
            del orders
            if new is not None:
                self._arrays = new
                return
            reasons = "; ".join(f"{name}: {why}" for name, why in self._tally.refused.items())
            if len(self.roster.nodes) - len(self._tally.refused) < self._minimum_clients and reasons:
                raise FederationError(f"round {number} cannot be done: {reasons}")
            self._say(
                f"round {number}: only {len(self._tally.counted)} of at least {self._minimum_clients} clients "
                f"answered{f' ({reasons})' if reasons else ''}; asking again"
            )
            self.roster.gather(grid, self._minimum_clients)

    def _audit(self, grid: Grid, number: int, deadline: float) -> float | None:
        """Ask all clients for their control as the next round will find it; return |mean of h_i| / mean of |h_i|."""
        if not (self._audit_every_rounds and self.algorithm.has_control) or number % self._audit_every_rounds:
            return None
        assert self._arrays is not None
        questions = [order for _, order in self._orders(number + 1, self._arrays, f"{MessageType.QUERY}.{AUDIT}")]
        controls = ControlSum()
        for reply in self._exchange(grid, questions, deadline):
            with suppress(MessageError):
                if reply.has_content():
                    controls.add(unpack_control(reply.content, self.state))
        if controls.clients < len(self._counted):
            self._say(f"round {number}: no audit, as only {controls.clients} of {len(self._counted)} clients answered")
            return None
        return controls.relative_norm()

    def _exchange(self, grid: Grid, messages: Iterable[Message], timeout_seconds: float) -> Iterator[Message]:
        """Send messages and give the replies as they come: told by the grid, or polling often while they come."""
        waiting = set(grid.push_messages(list(messages))) - {""}  # a list: Flower's grid goes over it twice
        self._shelf.let_go()
        end, wait = time.monotonic() + timeout_seconds, SHORTEST_WAIT_SECONDS
        while waiting and (left := end - time.monotonic()) > 0:
            replies = list(grid.pull_messages(waiting))
            arrived = bool(replies)
            while replies:
                waiting.discard(replies[-1].metadata.reply_to_message_id)
                yield replies.pop()
            if arrived:
                wait = SHORTEST_WAIT_SECONDS
            elif isinstance(grid, PromptGrid):
                grid.wait_for_reply(left)
            else:
                time.sleep(min(wait, left))
                wait = min(1.3 * wait, LONGEST_WAIT_SECONDS)
        if waiting and isinstance(grid, PromptGrid):
            grid.forget(waiting)

    def _orders(self, number: int, arrays: ArrayRecord, kind: str) -> Iterator[tuple[str, Message]]:
        """Yield each client's name and what it is told at the start of a round: plan, state, its last counted round."""
        plan = self.experiment.plan(number)
        for name, node in self.roster.nodes.items():
            counted = self._counted.get(name, 0)
            content = pack_order(self._own_arrays(arrays, counted, number), plan, counted)
            yield name, Message(content, node, kind, group_id=str(number))

    def _own_arrays(self, arrays: ArrayRecord, counted: int, number: int) -> ArrayRecord:
        """Return the shared arrays, or for a client that missed rounds, with the average that it has to settle with."""
        if counted in (0, number - 1) or counted not in self._averages:
            return arrays
        return pack_state(self.state, average=self._averages[counted])

    def _count(self, reply: Message, name: str, number: int) -> None:
        """Add a reply to the tally, or note why not."""
        if reply.has_error():
            reasons = self._tally.refused if reply.error.code == CLIENT_FAILED else self._tally.absent
            reasons[name] = str(reply.error.reason)
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

    def _remember(self, number: int, counted: Iterable[str]) -> None:
        """Keep a round's average until all that were counted in it have been counted in a later one."""
        self._counted |= dict.fromkeys(counted, number)
        self._averages[number] = self.state.model
        still_open = set(self._counted.values())
        self._averages = {one: average for one, average in self._averages.items() if one in still_open}

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
            **dict.fromkeys(self._counted, "it has left"),
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
            traffic_by_client={name: self._traffic_of(name, traffic) for name in sorted(tally.counted)},
            metrics=metrics,
        )
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


def _traffic(grid: Grid) -> MessageBytes:
    return (
        MessageBytes(*grid.traffic_bytes(), grid.traffic_bytes_by_node())
        if isinstance(grid, PromptGrid)
        else MessageBytes()
    )


def _numbers(metrics: MetricRecord) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
