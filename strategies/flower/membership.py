"""Who is a member of the federation, and what brings the sum of the members' control variates back to zero.

The ledger keeps that sum while members miss rounds; the roster says who is here. Who was away for too long, or has lost
its control, is given up; the others then show their controls once, and the mean is taken from each of them. An audit
shows the sum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from common.errors import MessageError
from common.experiment.experiment import Experiment
from common.messages.flower import CLIENT_FORGOT
from common.messages.messages import Recentring, message_to, pack_recentring, unpack_control
from common.rounds.account import Purpose
from common.rounds.ledger import Checkpoint
from common.rounds.mean import ControlSum
from common.rounds.outliers import outliers
from common.rounds.state import ServerState
from common.say import Event, Say
from common.storage.disk import when_there_is_room
from strategies.flower.exchange import Questions
from strategies.flower.meter import Meter
from strategies.flower.roster import GATHERING_SECONDS, Roster, short
from strategies.flower.terms import Terms

MOST_TIMES_LEFT_OUT = 10  # in a row
LARGEST_SUM = 1e-3  # of the controls, relative: what rounding leaves is a thousandth of that
MOST_TIMES_FORGOTTEN = 10

Orders = Callable[[Literal["audit"]], dict[str, Message]]  # what each client here is told, of what is asked


@dataclass(frozen=True)
class Occasion:
    """What questions beside training are asked with: where, in which round, until when, and who notes the bytes."""

    grid: Grid
    number: int  # of the round as which clients are asked
    deadline_seconds: float
    purpose: Purpose
    meter: Meter


class Membership:
    """The members, by name: here or away, counted on or given up."""

    def __init__(self, experiment: Experiment, terms: Terms, start: Checkpoint, say: Say, frozen: str = "") -> None:
        self.roster = Roster(experiment.clients, say, start.identities, start.put_out, frozen=frozen)
        self.ledger = start.ledger
        self.given_up = {name: _out(why) for name, why in start.put_out.items()}  # name: why
        self._algorithm = experiment.algorithm
        self._clients = experiment.clients
        self._minimum = terms.minimum_clients or experiment.clients
        self._evict_after_rounds = terms.evict_after_rounds
        self._evict_after_seconds = math.inf if terms.evict_after_seconds is None else terms.evict_after_seconds
        self._away_since: dict[str, float] = {}  # of members: when they were first missed
        self._say = say
        self._times_left_out: dict[str, int] = {}  # in a row
        self._times_forgotten: dict[str, int] = {}  # of what each client was counted on for
        self._wanted = ""  # who must be back before the controls sum to zero again
        self._is_audited = True  # the last time that it was to be

    @property
    def identities(self) -> dict[str, str]:
        """Return what tells each member from another that was given its name."""
        known = self.roster.identities
        return {name: known[name] for name in self.ledger.members if name in known}

    def gather(self, grid: Grid, *, resumed: bool) -> None:
        """Wait for all clients, or those of a run that goes on; after a while, for as many as a round needs."""
        wanted = len(self.ledger.members) if resumed else self._clients
        self.roster.gather(grid, wanted, min(self._minimum, wanted), GATHERING_SECONDS)

    def evict(self, number: int) -> None:
        """Give up members that were away for too long."""
        if self._evict_after_rounds is not None:
            for name in self.ledger.overdue(number, self._evict_after_rounds):
                self.give_up(name, f"was not counted in {self._evict_after_rounds} rounds")
        now, away = time.monotonic(), self.ledger.members.keys() - self.roster.nodes.keys()
        self._away_since = {name: self._away_since.get(name, now) for name in sorted(away)}
        for name, since in self._away_since.items():
            if now - since >= self._evict_after_seconds:
                self.give_up(name, f"was away for {self._evict_after_seconds:g} s")

    def give_up(self, name: str, why: str) -> None:
        """Count no longer on a member's control variate."""
        self.ledger = self.ledger.without(name)
        self.roster.release(name)
        self.given_up[name] = f"it {why}, and was given up"
        if self._algorithm.has_control:
            what_now = "it starts afresh, and the others will be re-centred when all of them are here"
            self._say(Event(f"{name} {why}: {what_now}", kind="given up", client=name))

    def forgot(self, name: str, grid: Grid) -> None:
        """Give up a member that has lost its control variate; put it out if that is all it does, as it costs others."""
        times = self._times_forgotten[name] = self._times_forgotten.get(name, 0) + 1
        if times < MOST_TIMES_FORGOTTEN:
            self.give_up(name, "has lost its control variate")
        else:
            self.put_out(name, f"has lost its control variate {times} times; with --state DIR it would not", grid)

    def put_out(self, name: str, why: str, grid: Grid) -> None:
        """Give up a client that did what no honest one does, with its control variate, and ask it no more."""
        self.ledger = self.ledger.without(name)
        self.given_up[name] = _out(why)
        self.roster.exclude(name, why, grid)

    def left_out(self, names: Collection[str], grid: Grid) -> None:
        """Put out whoever was left out of so many rounds, one after the other, as unlike the others."""
        self._times_left_out = {name: self._times_left_out.get(name, 0) + 1 for name in names}
        for name, times in self._times_left_out.items():
            if times >= MOST_TIMES_LEFT_OUT:
                self.put_out(name, f"was left out of {times} rounds in a row, as unlike the others", grid)

    def counted(self, number: int, uploads: Mapping[str, int], average: Tensor) -> None:
        """Note whose uploads were counted in a round, by their checksums, and with which average to settle."""
        self.ledger = self.ledger.after_round(number, uploads, average)

    def participation(self, names: list[str]) -> float:
        """Return the share of all members that these are, of whom some may be new."""
        return len(names) / len(self.ledger.members.keys() | set(names))

    def recentre(self, occasion: Occasion, orders: Orders, state: ServerState, on_change: Callable[[], None]) -> None:
        """Bring the sum of the controls back to zero where a member has gone with its own."""
        if not self._algorithm.has_control:
            return
        if self.ledger.off_centre and not self.ledger.awaiting:
            controls = self._controls(occasion, orders, state)
            if controls is None:
                self._say_who_is_wanted()
                return  # again before the next round, when all may be here
            counted = [history.counted for history in self.ledger.members.values()]
            self.ledger = self.ledger.recentred(controls.mean(self._algorithm.holders(state, counted)))
            on_change()
            members = len(self.ledger.members)
            self._say(Event(f"round {occasion.number}: {members} members are re-centred", kind="re-centred"))
        for name, _ in self._answers(occasion, dict(self._recentrings())):
            self.ledger = self.ledger.delivered(name)

    def audit(self, occasion: Occasion, orders: Orders, like: ServerState) -> float | None:
        """Return |mean of h_i| / mean of |h_i|, as the occasion's round will find the h_i; None where some are away."""
        controls = None if self.ledger.awaiting else self._controls(occasion, orders, like)
        if controls is None or self.ledger.off_centre:
            if self._is_audited:  # else it was said before
                why = "some members do not answer or are not re-centred yet"
                self._say(Event(f"round {occasion.number - 1}: no audit, as {why}", kind="audit"))
            self._is_audited = False
            return None
        self._is_audited = True
        norm = controls.relative_norm()
        if norm > LARGEST_SUM and self._algorithm.keeps_zero_sum:
            self.ledger = self.ledger.unbalanced()
            what_now = "whatever the reason, the members are re-centred before the next round"
            found = f"the control variates sum to {norm:.1e} of their size, not to zero"
            self._say(Event(f"warning: round {occasion.number - 1}: {found}; {what_now}", kind="off centre"))
        return norm

    def _say_who_is_wanted(self) -> None:
        """Tell, when it changes, for whose return the others wait to be re-centred."""
        wanted = ", ".join(sorted(self.ledger.members.keys() - self.roster.nodes.keys()))
        if wanted and wanted != self._wanted:
            until = f"until {wanted} is back, or given up (--evict-after)"
            self._say(Event(f"the control variates do not sum to zero {until}", kind="off centre"))
        self._wanted = wanted

    def _recentrings(self) -> Iterator[tuple[str, Message]]:
        for name in sorted(self.ledger.awaiting & self.roster.nodes.keys()):
            assert self.ledger.shift is not None
            recentring = Recentring(
                number=self.ledger.recentrings,
                history=self.ledger.members[name],
                shift=self.ledger.shift,
                average=self.ledger.average_for(name),
            )
            content = when_there_is_room(partial(pack_recentring, recentring), self._say)
            yield name, message_to(self.roster.nodes[name], "recentre", content)

    def _controls(self, occasion: Occasion, orders: Orders, like: ServerState) -> ControlSum | None:
        """Ask all members for their controls as a round finds them; None where one does not answer."""
        told = orders("audit")
        questions = {name: order for name, order in told.items() if name in self.ledger.members}
        controls, norms = ControlSum(), dict[str, float]()
        if questions.keys() == self.ledger.members.keys():
            for name, answer in self._answers(occasion, questions):
                try:
                    control = unpack_control(answer, like)
                except MessageError as error:
                    self.put_out(name, f"showed no control variate ({short(str(error))})", occasion.grid)
                    continue
                norms[name] = float(control.norm())
                controls.add(control)
        for name, norm in outliers(norms).items():
            self.put_out(name, f"showed a control variate of norm {norm}", occasion.grid)
        return controls if norms and norms.keys() == self.ledger.members.keys() else None

    def _answers(self, occasion: Occasion, messages: dict[str, Message]) -> Iterator[tuple[str, RecordDict]]:
        """Ask clients, and yield who answers what; one that has lost its control is no longer a member."""
        occasion.meter.sent(occasion.purpose, messages)
        questions = Questions(messages)
        for reply in questions.answers(occasion.grid, occasion.deadline_seconds):
            name = questions.client_of(reply)
            if reply.has_content():
                occasion.meter.received(occasion.purpose, name, reply)
                yield name, reply.content
            elif reply.error.code == CLIENT_FORGOT:
                self.forgot(name, occasion.grid)
            else:
                self._say(Event(f"{name}: {short(reply.error.reason)}", kind="no answer", client=name))
        occasion.meter.close(occasion.purpose, questions, occasion.grid)


def _out(why: str) -> str:
    return f"it {why}, and was put out"
