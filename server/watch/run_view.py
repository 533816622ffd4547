"""A run as the page shows it: one line of the list, or all of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.watch.clients_view import MOST_ROWS, clients_counts, clients_table, strip
from server.watch.downsample import kept_points
from server.watch.loose import iso, number
from server.watch.run_files import RunFiles
from server.watch.state import State, banner_of, state_of

MOST_POINTS = 1000

Json = dict[str, Any]


@dataclass(frozen=True)
class RunView:
    """A run at a moment."""

    id: str
    run: RunFiles
    now: float

    @classmethod
    def read(cls, run_id: str, folder: Path) -> RunView:
        """Read a run once, and all of it."""
        run = RunFiles(folder)
        run.refresh(with_clients=True)
        while not run.clients.are_sums_complete:
            run.refresh(with_clients=True)
        return cls(run_id, run, time.time())

    @property
    def state(self) -> State:
        """Return the state of the run."""
        return state_of(self.run, self.now)

    def summary(self) -> Json:
        """Return what the list of runs shows."""
        run, rounds, settings, state = self.run, self.run.rounds, self.run.settings, self.state
        best, sent = rounds.best, rounds.sent(rounds.sent_kind)
        return {
            "id": self.id,
            "name": self.id.rpartition("/")[2],
            "task": run.status.task or settings.name_of("task.name"),
            "how": self._how(),
            "algorithm": run.status.algorithm or settings.name_of("algorithm.name"),
            "density": self._density(),
            "state": state.name,
            "state_text": state.text,
            "clients": run.status.clients or settings.number_of("clients"),
            "round": rounds.last_round,
            "rounds": run.status.rounds or settings.number_of("rounds"),
            "metric": rounds.metric or run.status.metric,
            "score": rounds.scores[rounds.evaluated[-1]] if rounds.evaluated else None,
            "best": None if best is None else {"score": rounds.scores[best], "round": rounds.numbers[best]},
            "sent_bytes_per_client": sent[-1] if sent else None,
            "sent_kind": rounds.sent_kind,
            "started": iso(self.started),
            "spark": rounds.spark(),
        }

    def whole(self) -> Json:
        """Return all that the page shows of the run."""
        run, rounds, state = self.run, self.run.rounds, self.state
        weights, density = run.status.weights or run.model.weights, self._density()
        rows = clients_table(run, state, self.now)
        return self.summary() | {
            "data": run.settings.data or run.status.data,
            "needed": run.status.needed,
            "weights": weights,
            "weights_kept": round(weights * density) if weights and density is not None else None,
            "seconds_per_round": rounds.seconds_per_round,
            "seconds_left": self._seconds_left(state),
            "seconds_running": self._seconds_running(state),
            "wire_bytes_per_client": rounds.wire or None,
            "got_bytes_per_client": rounds.got or None,
            "control_sum": rounds.control_sum,
            "command": run.status.command,
            "banner": banner_of(run, state, run.status.command, self.now),
            "curve": curve(run, rounds.sent_kind),
            "marks": self._marks(),
            "events": [
                {"time": one.written, "kind": one.kind, "client": one.client, "text": one.text, "sign": one.sign}
                for one in reversed(run.happenings.newest)
            ],
            "clients_table": rows[:MOST_ROWS],
            "clients_counts": clients_counts(rows),
            "strip": strip(run, rows),
            "settings": run.settings.values,
            "coefficients": run.model.coefficients or None,
        }

    def _how(self) -> str:
        """Return whether the run is deployed or simulated; nothing before its first round, if its process is silent."""
        told = "deployed" if self.run.is_deployed else "simulated" if self.run.rounds.numbers else ""
        return self.run.status.how or told

    def _density(self) -> float | None:
        of_experiment = self.run.settings.number_of("algorithm.density")
        return number(self.run.rounds.newest.get("density_up")) if of_experiment is None else of_experiment

    @property
    def started(self) -> float | None:
        """Return when the run was begun, in seconds since 1970."""
        beginnings = self.run.happenings.beginnings
        return beginnings[0] if beginnings else self.run.rounds.started

    @property
    def last_sign_of_work(self) -> float | None:
        """Return when the last round was done, or a process took the run up, in seconds since 1970."""
        return max([*self.run.rounds.clocks[-1:], *self.run.happenings.beginnings[-1:]], default=None)

    def _seconds_left(self, state: State) -> float | None:
        run, each = self.run, self.run.rounds.seconds_per_round
        rounds = run.status.rounds or run.settings.number_of("rounds")
        if not state.is_going_on or each is None or not rounds:
            return None
        return max(0.0, rounds - run.rounds.last_round) * each

    def _seconds_running(self, state: State) -> float | None:
        """Return how long processes have been at work on the run, from its first round on."""
        rounds, last = self.run.rounds, self.last_sign_of_work
        if not rounds.elapsed or last is None:
            return None
        return rounds.elapsed[-1] + (max(0.0, self.now - last) if state.is_going_on else 0.0)

    def _marks(self) -> list[Json]:
        rounds = self.run.rounds
        sent = rounds.sent(rounds.sent_kind)
        marks = []
        for one in self.run.happenings.marked:
            place = rounds.place_at(one.time)
            if place is not None:
                where = {"round": rounds.numbers[place], "time": rounds.elapsed[place], "sent": sent[place]}
                marks.append({**where, "kind": one.kind, "sign": one.sign, "text": one.text})
        return marks


def curve(run: RunFiles, sent_kind: str) -> Mapping[str, list[float]]:
    """Return the score against rounds, time and bytes that a client has sent."""
    rounds, sent = run.rounds, run.rounds.sent(sent_kind)
    places = rounds.evaluated
    kept = [places[one] for one in kept_points([rounds.scores[place] for place in places], MOST_POINTS)]
    return {
        "round": [rounds.numbers[place] for place in kept],
        "time": [rounds.elapsed[place] for place in kept],
        "sent": [sent[place] for place in kept],
        "score": [rounds.scores[place] for place in kept],
    }
