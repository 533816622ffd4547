"""What the server must know of its clients' control variates to keep their sum at zero.

A round's average w' over the counted clients moves the sum of the h_i by (p / gamma) (|S| w' - sum of their w^_i) = 0,
if and only if every client that was counted in it, and nobody else, closes its control with w', once. So the ledger
says of which round each client was counted last, and keeps that round's average until the client has surely had it.
It also keeps the history of each control: a client whose own is another has lost the control that is counted on.

When a client is gone with its control, those of the others no longer sum to zero: their mean is then taken from each of
them, once. A client that is new, or comes back as a new one, starts without a correction, which changes no sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from common.rounds.history import History
from common.rounds.state import ServerState
from common.vectors.remainder import Remainder


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """The members, which are all clients that were counted and are not given up, and what is on its way to them."""

    members: Mapping[str, History] = field(default_factory=dict)  # name -> what its control has been through
    averages: Mapping[int, Tensor] = field(default_factory=dict)  # of rounds that some member may not have settled yet
    off_centre: bool = False  # a member has gone with its control, and the others' were not asked for since
    recentrings: int = 0  # how often that was mended
    shift: Tensor | None = None  # what the last time is to be taken from the controls of those who wait for it
    awaiting: frozenset[str] = frozenset()

    def after_round(self, number: int, uploads: Mapping[str, int], average: Tensor) -> Ledger:
        """Return the ledger with one more round in it; `uploads` has the checksum of each that was counted."""
        counted = {name: self.history_of(name).after_round(number, checksum) for name, checksum in uploads.items()}
        members = {**self.members, **counted}
        return replace(self, members=members, averages=_still_open(members, {**self.averages, number: average}))

    def history_of(self, name: str) -> History:
        """Return what a client's control has been through; of one that is no member, nothing."""
        return self.members.get(name, History())

    def average_for(self, name: str) -> Tensor | None:
        """Return the average with which a member has to settle."""
        return self.averages.get(self.history_of(name).counted)

    def overdue(self, number: int, rounds: int) -> list[str]:
        """Return the members that were counted in none of so many rounds before this one."""
        return [name for name, history in self.members.items() if number - 1 - history.counted >= rounds]

    def without(self, name: str) -> Ledger:
        """Return the ledger without a member whose control is lost."""
        if name not in self.members:
            return self
        members = {one: history for one, history in self.members.items() if one != name}
        averages = _still_open(members, self.averages)
        return replace(self._awaited_by(self.awaiting - {name}), members=members, averages=averages).unbalanced()

    def unbalanced(self) -> Ledger:
        """Return the ledger of members whose controls are known not to sum to zero; of none there is no sum."""
        return replace(self, off_centre=bool(self.members))

    def recentred(self, shift: Tensor) -> Ledger:
        """Return the ledger with the mean of all members' controls, which is to be taken from each of them."""
        return replace(
            self,
            off_centre=False,
            recentrings=self.recentrings + 1,
            shift=shift,
            awaiting=frozenset(self.members),
        )

    def delivered(self, name: str) -> Ledger:
        """Return the ledger with one member less that waits for the shift, as it has been taken from its control."""
        assert self.shift is not None
        taken = self.members[name].after_recentring(self.recentrings, self.shift)
        return replace(self._awaited_by(self.awaiting - {name}), members={**self.members, name: taken})

    def _awaited_by(self, awaiting: frozenset[str]) -> Ledger:
        return replace(self, awaiting=awaiting, shift=self.shift if awaiting else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """All that the server has to know to go on after a round."""

    round: int  # the last one that is done
    state: ServerState
    ledger: Ledger = field(default_factory=Ledger)
    identities: Mapping[str, str] = field(default_factory=dict)  # of the members: what tells each from a namesake
    put_out: Mapping[str, str] = field(default_factory=dict)  # who may not take part any more, and why
    bits_up: float = 0.0
    rounded_off: Remainder | None = None  # from the means so far, where control variates are closed with these


def _still_open(members: Mapping[str, History], averages: Mapping[int, Tensor]) -> dict[int, Tensor]:
    wanted = {history.counted for history in members.values()}
    return {number: average for number, average in averages.items() if number in wanted}
