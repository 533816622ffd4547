"""The Flower strategy that runs any of the algorithms in strategies/.

It is a `flwr.serverapp.strategy.Strategy` like Flower's own, so it fits into an app of one's own; see docs/flower.md.
Two things differ from them. The mean is uniform, never weighted by examples: weights would break the zero sum of the
control variates. And clients are known by names of their own, not by the connection they happen to have, because a
message says of which round the client's upload was counted last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common.codec.payload import largest_bytes
from common.errors import DecodeError, MessageError, NotKeptError, UserError
from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.learning.task import OwnDataProblem, Problem, mean_over_examples
from common.messages.flower import CLIENT_FAILED, CLIENT_FORGOT
from common.messages.messages import Evaluation, unpack_evaluation, unpack_report
from common.rounds.account import Purpose, RoundAccount
from common.rounds.algorithm import Algorithm, server_round
from common.rounds.ledger import Checkpoint
from common.rounds.mean import RunningMean
from common.rounds.outliers import Change
from common.rounds.robust import most_left_out
from common.rounds.state import RoundPlan, ServerState
from common.say import Event
from common.storage.disk import when_there_is_room
from common.vectors.divergence import refuse_divergence
from strategies.flower.downlink import Downlink
from strategies.flower.exchange import Questions
from strategies.flower.listener import Listener
from strategies.flower.membership import Membership, Occasion
from strategies.flower.meter import Meter
from strategies.flower.prompt_grid import PromptGrid
from strategies.flower.robust import RobustTally
from strategies.flower.roster import short
from strategies.flower.seating import counted, seated
from strategies.flower.stage import Stage
from strategies.flower.tally import Tally, listed
from strategies.flower.terms import Terms

FIRST_PAUSE_SECONDS = 0.5  # before a round is asked for again
LONGEST_PAUSE_SECONDS = 30.0
AN_HOUR_SECONDS = 3600.0


class FederationError(UserError):
    """The clients cannot do what the run asks of them."""


class AlgorithmStrategy(Strategy):
    """Runs an experiment's algorithm on the clients of a Flower grid.

    A round ends when all clients have answered, or at the deadline with at least `minimum_clients`; with fewer, `start`
    asks for it again. It is measured by the problem, or by the clients where these have data of their own. The listener
    hears of every round with a checkpoint from which a new strategy can go on. What clients do is in the experiment
    alone: the ConfigRecords that Flower's interface passes along are not sent.
    """

    def __init__(
        self,
        experiment: Experiment,
        problem: Problem,
        terms: Terms | None = None,
        *,
        listener: Listener | None = None,
        resume_from: Checkpoint | None = None,
    ) -> None:
        terms = terms or Terms()
        if terms.minimum_clients is not None and terms.minimum_clients > experiment.clients:
            raise UserError(f"a round cannot have at least {terms.minimum_clients} of {experiment.clients} clients")
        if terms.robust > (most := most_left_out(experiment.clients)):
            raise UserError(f"of {experiment.clients} clients at most {most} may lie (--robust), not {terms.robust}")
        if terms.robust and not experiment.algorithm.uploads_are_alike:
            name = plugins.name_of(Algorithm.plugin_package, type(experiment.algorithm))
            raise UserError(f"--robust compares uploads, and those of {name} are unlike each other; leave it out")
        self.experiment = experiment
        self.algorithm = experiment.algorithm
        self._problem = problem
        self._terms = terms
        self.deadline_seconds = terms.deadline_seconds or AN_HOUR_SECONDS
        self._listener = listener or Listener()
        self._say = self._listener.say
        start = resume_from or Checkpoint(round=0, state=self.algorithm.initial_state(problem.initial_state()))
        self._downlink = Downlink(experiment, start, self._say)
        self.members = Membership(experiment, terms, self._downlink.now, self._say, problem.frozen_digest())
        self._gathered = False
        self._meter = Meter()
        self._grid: Grid | None = None
        # Of the round under way:
        self._plans: dict[str, RoundPlan] = {}
        self._questions = Questions({})
        self._tally = Tally()
        self._audited: float | None = None
        self.stage = Stage("starting", self._downlink.now.round + 1)

    @property
    def state(self) -> ServerState:
        """Return the model after the last round, and what belongs to it."""
        return self._downlink.now.state

    @property
    def checkpoint(self) -> Checkpoint:
        """Return what it takes to go on after the last round."""
        members = self.members
        return replace(
            self._downlink.now,
            ledger=members.ledger,
            identities=members.identities,
            put_out=dict(members.roster.put_out),
        )

    @property
    def initial_arrays(self) -> ArrayRecord:
        """Return the state before the first round, or before the one to go on with, for `start`."""
        return self._downlink.arrays

    def summary(self) -> None:
        """Say what is about to run."""
        name = plugins.name_of(self.algorithm.plugin_package, type(self.algorithm))
        if self._terms.audit_every_rounds and not self.algorithm.has_control:
            self._say(Event(f"{name} has no control variates: there is nothing to audit", kind="audit"))
        self._say(f"{self.experiment.name}: {name}, {self.experiment.clients} clients, {self.experiment.rounds} rounds")

    # Flower's hooks: they work in `start` below as well as in Flower's own.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make sure of the members, and return the plan and the state, one message per client."""
        self._grid = grid
        self._downlink.take(arrays)
        self._gather(grid)
        under_way = self._meter.account
        if under_way is None or under_way.plan.round != server_round:  # else it is one more attempt
            plan = self._downlink.plan(server_round)
            self._meter.begin(RoundAccount(plan, self.state.model, self.experiment.clients))
        self._prepare(grid, server_round)
        nodes, ledger = self.members.roster.nodes, self.members.ledger
        self._plans = seated(self._downlink.plan(server_round), nodes.keys() - ledger.awaiting)
        orders = self._downlink.orders("train", self._plans, ledger, nodes)
        self._meter.sent("train", orders)
        self._questions = Questions(orders)
        self.stage = Stage("training", server_round)
        return self._questions.messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode and add each upload as it comes; the next state, or None where too few were counted."""
        self._downlink.let_go()
        tally = self._tally = self._new_tally()
        for reply in replies:
            self._count(reply, tally, server_round)
            del reply  # an upload may be large: it is gone before the next one comes
        tally.close()
        self._close_questions("train")
        if self._put_out_spoilers(tally) or len(tally.values) < self.needed:
            return None, None
        self._fold(tally, server_round)
        return self._downlink.arrays, MetricRecord({"training-seconds": tally.longest_training_seconds})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the model as it would be kept, if clients are asked to measure it; audit before, if that is due."""
        self._questions = Questions({})
        if (account := self._meter.account) is None or server_round != self._downlink.now.round:
            return []  # the round was not averaged
        account.end_training()
        self.stage = Stage("evaluating", server_round)
        self._audited = self._audit(grid, server_round)
        own = isinstance(self._problem, OwnDataProblem) and self.experiment.is_evaluated(server_round)
        if self._terms.evaluate_on_clients or own:
            evaluations = self._downlink.evaluations(server_round, self.members.roster.nodes)
            self._meter.sent("evaluate", evaluations)
            self._questions = Questions(evaluations)
        return self._questions.messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the metrics, the clients' loss among them where they were asked; the round is done with that."""
        told = []
        for reply in replies:
            with suppress(MessageError):  # a client that does not answer this is none to refuse in training
                if reply.has_content():
                    told.append(unpack_evaluation(reply.content))
        if (account := self._meter.account) is None or server_round != self._downlink.now.round:
            return None
        self._close_questions("evaluate")
        metrics = self._metrics(server_round, told)
        self._finish(account, metrics)
        return MetricRecord(dict(metrics)) if metrics else None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = AN_HOUR_SECONDS,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds that are left; `timeout` is the deadline of a round where the terms have none."""
        self.summary()
        self.deadline_seconds = self._terms.deadline_seconds or timeout
        if isinstance(grid, PromptGrid):
            grid.limit_replies(largest_bytes(self.algorithm.uploaded_like(self.state)))
        self._downlink.take(initial_arrays)
        del initial_arrays
        result = Result()
        for number in range(self._downlink.now.round + 1, num_rounds + 1):
            self._train(grid, number, train_config or ConfigRecord())
            self.configure_evaluate(number, self._downlink.arrays, evaluate_config or ConfigRecord(), grid)
            if metrics := self.aggregate_evaluate(number, self._answers(grid)):
                result.evaluate_metrics_clientapp[number] = metrics
            if evaluate_fn and (here := evaluate_fn(number, self._downlink.arrays)):
                result.evaluate_metrics_serverapp[number] = here
        result.arrays = self._downlink.arrays
        return result

    def _train(self, grid: Grid, number: int, config: ConfigRecord) -> None:
        """Ask for a round until enough clients were counted in it."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            self.configure_train(number, self._downlink.arrays, config, grid)
            put_out = len(self.members.roster.put_out)
            arrays, _ = self.aggregate_train(number, self._answers(grid))
            if arrays is not None:
                return
            out, needed, tally = self._out, self.needed, self._tally
            if self.experiment.clients - len(out) < needed:
                raise FederationError(f"round {number} cannot be done: {listed(out)}")
            if len(self.members.roster.put_out) > put_out:
                continue  # at once: all others have their uploads at hand
            reasons = listed({**tally.absent, **tally.refused})
            answered = f"only {len(tally.values)} of at least {needed} clients answered"
            why = f" ({reasons})" if reasons else ""
            self._say(Event(f"round {number}: {answered}; asking again{why}", kind="asking again"))
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            self.members.roster.gather(grid, needed)

    @property
    def counted(self) -> int:
        """Return how many uploads of the round under way are counted so far."""
        return len(self._tally.values)

    @property
    def _out(self) -> dict[str, str]:
        """Return who cannot be counted in this round, and why: put out, refused, or left out."""
        return {**self.members.roster.put_out, **self._tally.refused, **self._tally.left_out}

    @property
    def needed(self) -> int:
        """Return how many clients the round needs: by default all whom nobody has to refuse, more than half of them."""
        clients = self.experiment.clients
        return self._terms.minimum_clients or max(clients - len(self._out), clients // 2 + 1)

    def _put_out_spoilers(self, tally: Tally) -> bool:
        """Put out whoever has spoilt the mean; the others have to be asked once more, and send what they have."""
        assert self._grid is not None
        spoilers = tally.beyond_measure(self.state)
        for name, why in spoilers.items():
            self.members.put_out(name, why, self._grid)
        return bool(spoilers)

    def _answers(self, grid: Grid) -> Iterable[Message]:
        return self._questions.answers(grid, self.deadline_seconds)

    def _orders(self, number: int, asked: Literal["audit"]) -> dict[str, Message]:
        nodes = self.members.roster.nodes
        plans = seated(self._downlink.plan(number), nodes)
        return self._downlink.orders(asked, plans, self.members.ledger, nodes)

    def _gather(self, grid: Grid) -> None:
        """Wait for clients before the first round, which does not begin before they are here."""
        if not self._gathered:
            self._gathered = True
            self.members.gather(grid, resumed=self._downlink.now.round > 0)

    def _prepare(self, grid: Grid, number: int) -> None:
        """See who is here, give up who is gone, and re-centre where that is due."""
        self.members.roster.update(grid)
        self._meter.note_others(grid)
        self.members.evict(number)
        if self.members.ledger.off_centre or self.members.ledger.awaiting:
            self.stage = Stage("recentring", number)
            occasion = Occasion(grid, number, self.deadline_seconds, "recentre", self._meter)
            self.members.recentre(
                occasion,
                partial(self._orders, number),
                self.state,
                self._note_recentring,
            )

    def _note_recentring(self) -> None:
        """Note that the sum is zero again: what rounding took before is no longer owed to it."""
        self._downlink.now = replace(self._downlink.now, rounded_off=None)
        self._listener.on_recentring(self.checkpoint)

    def _new_tally(self) -> Tally:
        mean = RunningMean(self._terms.largest_norm)
        if not self._terms.robust:
            return Tally(mean)
        liars = self._terms.robust - len(self.members.roster.put_out)
        return RobustTally(mean, liars=liars, least=self._terms.minimum_clients or 1)

    def _count(self, reply: Message, tally: Tally, number: int) -> None:
        """Add a reply to the tally, or note why not."""
        name = self._questions.client_of(reply)
        if reply.has_error():
            reasons = tally.refused if reply.error.code == CLIENT_FAILED else tally.absent
            reasons[name] = short(reply.error.reason)
            self._downlink.forget(reply.metadata.src_node_id)
            if reply.error.code == CLIENT_FORGOT:
                assert self._grid is not None
                self.members.forgot(name, self._grid)
            return
        try:
            self._meter.received("train", name, reply)
            if name not in self._plans:
                raise MessageError("an upload that nobody was asked for")
            plan, size = self._plans[name], self.state.model.shape[-1]
            like, most = self.algorithm.uploaded_like(self.state), self.algorithm.most_uploaded(plan, size)
            report = unpack_report(reply.content, like, most, self._downlink.given, plan.step or None)
            if (report.client, report.round) != (name, number):
                raise MessageError(f"an upload of {report.client!r} for round {report.round}")
            tally.add(report, Change(self.state, self._downlink.let_go), self._link_seconds(reply))
            self._downlink.keeps(reply.metadata.src_node_id)
        except NotKeptError as error:
            tally.absent[name] = short(str(error))
            self._downlink.forget(reply.metadata.src_node_id)
        except (MessageError, DecodeError) as error:
            tally.refused[name] = short(str(error))

    def _link_seconds(self, reply: Message) -> Mapping[str, float]:
        """Return what a message and its reply took on their way, where the grid knows."""
        grid = self._grid
        return grid.carried(reply.metadata.reply_to_message_id).seconds if isinstance(grid, PromptGrid) else {}

    def _fold(self, tally: Tally, number: int) -> None:
        """Go on to the state that a round's uploads give."""
        names, before = list(tally.values), self._downlink.now
        if not self.members.ledger.members:  # all start with h = 0: nothing is owed to their sum
            before = replace(before, rounded_off=None)
        plan = counted(self._downlink.plan(number), self._plans, names)
        participation = self.members.participation(names)
        state, rest = when_there_is_room(
            lambda: server_round(self.algorithm, plan, before, tally.mean, participation), self._say
        )
        self._downlink.advance(replace(before, round=number, state=state, rounded_off=rest))
        self.members.counted(number, tally.checksums, self.state.model)
        assert self._grid is not None
        self.members.left_out(tally.left_out, self._grid)

    def _close_questions(self, purpose: Purpose) -> None:
        """Put down what an exchange took, and wait for nobody any more."""
        assert self._grid is not None
        self._meter.close(purpose, self._questions, self._grid)
        self._meter.note_others(self._grid)

    def _audit(self, grid: Grid, number: int) -> float | None:
        """Return how far the controls are from summing to zero, as the next round will find them, if that is due."""
        every = self._terms.audit_every_rounds
        if not (every and self.algorithm.has_control) or number % every:
            return None
        occasion = Occasion(grid, number + 1, self.deadline_seconds, "audit", self._meter)
        return self.members.audit(occasion, partial(self._orders, number + 1), self.state)

    def _metrics(self, number: int, told: Sequence[Evaluation]) -> dict[str, float]:
        """Return what is known of a round's model: by its clients, and where there is held-out data by this server."""
        metrics = {"train_loss": sum(one.loss for one in told) / len(told)} if told else {}
        if isinstance(self._problem, OwnDataProblem):
            measured = [one.held_out for one in told if one.held_out.means.keys() == self._problem.measured]
            metrics |= self._problem.summarize(mean_over_examples(measured)) if told else {}
        elif self.experiment.is_evaluated(number):
            metrics |= self._problem.evaluate(self.algorithm.evaluated(self.state))
        return metrics

    def _finish(self, account: RoundAccount, metrics: dict[str, float]) -> None:
        """Make the round's record, and let it be kept before anything of the next round is sent."""
        tally, members, now = self._tally, self.members, self._downlink.now
        refuse_divergence(account.plan.round, now.state.model, metrics.values())
        record = account.record(
            bits_up_before=now.bits_up,
            values=dict(sorted(tally.values.items())),
            model_values=tally.mean.model_values,
            control_sum_norm=self._audited,
            metrics=metrics,
            missing=tally.missing(members.given_up, members.ledger.members, members.roster.nodes),
            efforts=dict(sorted(tally.efforts.items())),
            waited_for=tally.waited_for,
        )
        for name in tally.values:
            members.given_up.pop(name, None)
        self._meter.end()
        self._downlink.now = replace(now, bits_up=record.paper_bits_up)
        self._listener.on_round(record, self.checkpoint)
