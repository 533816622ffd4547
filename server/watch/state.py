"""What state a run is in, and what its operator should know first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common.say import listed
from common.units import seconds_text
from server.watch.loose import iso
from server.watch.run_files import RunFiles

HEARTBEAT_SECONDS = 10.0  # a process that says nothing for so long is gone
WAITING_SECONDS = 3.0  # for somebody: what is less is nothing to speak of
WAITING_ROUNDS = 3  # and as long as so many rounds
STALLED_SECONDS = 60.0
STALLED_ROUNDS = 10
SILENT_SECONDS = 600.0  # until a run that has no heartbeat is taken for stopped
LARGEST_CONTROL_SUM = 1e-3  # relative; it is zero up to rounding, 1e-5
FALLEN = 0.5  # a score below this part of the best one
CERTIFICATE_SECONDS = 86400.0  # for so long a warning is shown


@dataclass(frozen=True)
class State:
    """One word for the list of runs, and what there is to add."""

    name: str  # live, waiting, finished, stopped or failed
    text: str = ""
    waited_seconds: float = 0.0  # for an answer in the current round

    @property
    def is_going_on(self) -> bool:
        """Say whether a process is at work."""
        return self.name in ("live", "waiting")


def state_of(run: RunFiles, now: float) -> State:
    """Return the state of a run, whether its process says so or only its files do."""
    if run.problem:
        return State("failed", run.problem)
    if not run.is_read:
        return State("stopped", "not read yet")
    if run.is_finished or run.status.state == "finished":
        return State("finished", _fall(run))
    return _told(run, now) if run.status.time is not None else _guessed(run, now)


def _told(run: RunFiles, now: float) -> State:
    status = run.status
    if status.state in ("stopped", "failed"):
        return State(status.state, status.text or _fall(run))
    silent = now - (status.time or 0.0)
    if silent > HEARTBEAT_SECONDS:
        return State("stopped", f"its process has been gone for {seconds_text(silent)}")
    if status.state == "gathering":
        return State("waiting", status.text.removeprefix("waiting ") or "for clients")
    waited = max(0.0, now - status.round_started) if status.round_started else 0.0
    if status.waiting_for and waited > max(WAITING_SECONDS, WAITING_ROUNDS * (run.rounds.seconds_per_round or 0.0)):
        return State("waiting", f"{seconds_text(waited)}, for {listed(status.waiting_for)}", waited)
    return State("live", status.text, waited)


def _guessed(run: RunFiles, now: float) -> State:
    """Judge a run without a status by its events and by when it wrote last."""
    last, silent = run.happenings.last_of_run, now - run.last_written
    if last and last.kind in ("stopped", "failed", "server failed"):
        return State("stopped" if last.kind == "stopped" else "failed", last.text)
    if silent > max(SILENT_SECONDS, _patience(run)):
        return State("stopped", _fall(run) or f"nothing new for {seconds_text(silent)}")
    return State("live", "", silent)


def _patience(run: RunFiles) -> float:
    return max(STALLED_SECONDS, STALLED_ROUNDS * (run.rounds.seconds_per_round or 0.0))


def _fall(run: RunFiles) -> str:
    """Return that a score has broken down, if it has."""
    rounds, best = run.rounds, run.rounds.best
    if best is None:
        return ""
    highest, last = rounds.scores[best], rounds.scores[rounds.evaluated[-1]]
    has_fallen = highest > 0 and last < FALLEN * highest  # a share of what is below zero would be above it
    return f"fell from {highest:.3g} in round {rounds.numbers[best]}" if has_fallen else ""


def banner_of(run: RunFiles, state: State, command: str, now: float) -> dict[str, Any] | None:
    """Return the one thing that the operator should know first, if there is any."""
    for one in (_not_going_on, _waiting, _stalled, _diverged, _off_centre, _certificate):
        if found := one(run, state, command, now):
            return found
    return None


def _banner(kind: str, title: str, text: str, clients: list[str] | None = None) -> dict[str, Any]:
    return {"kind": kind, "title": title, "text": text, "clients": clients or [], "deadline": None}


def _not_going_on(run: RunFiles, state: State, command: str, _: float) -> dict[str, Any] | None:
    if state.name not in ("stopped", "failed"):
        return None
    how = f"It goes on with: {command}" if command else "The command that began it goes on with it, with --resume."
    title = f"{state.name.capitalize()} after round {run.rounds.last_round}"
    kind = "diverged" if "finite" in state.text or state.text.startswith("fell from") else "stopped"
    return _banner(kind, title, f"{state.text}. {how}" if state.text else how)


def _waiting(run: RunFiles, state: State, _: str, __: float) -> dict[str, Any] | None:
    status = run.status
    if state.name != "waiting":
        return None
    if not status.waiting_for or not status.round_started:
        return _banner("waiting", "Waiting for clients", state.text, status.waiting_for)
    away = [name for name, one in status.by_client.items() if one.state in ("away", "put out")]
    has = f"Round {status.round} has {status.counted} of {status.clients} uploads"
    needs = f" and needs {status.needed}" if status.needed else ""
    absent = f": {listed(away)} {'is' if len(away) == 1 else 'are'} away" if away else ""
    title = f"Waiting {seconds_text(state.waited_seconds)} for {listed(status.waiting_for)}"
    found = _banner("waiting", title, f"{has}{needs}{absent}.", [*status.waiting_for, *away])
    if status.deadline_seconds:
        ends = iso(status.round_started + status.deadline_seconds)
        found["deadline"] = {"ends": ends, "seconds": status.deadline_seconds}
        found["text"] += " At the deadline the round goes on with those who have answered, or is asked for again."
    return found


def _stalled(run: RunFiles, state: State, _: str, __: float) -> dict[str, Any] | None:
    if not state.is_going_on or state.waited_seconds <= _patience(run):
        return None
    title = f"No round for {seconds_text(state.waited_seconds)}"
    usual = run.rounds.seconds_per_round
    return _banner("stalled", title, f"A round takes {seconds_text(usual)} otherwise." if usual else "")


def _diverged(run: RunFiles, _: State, __: str, ___: float) -> dict[str, Any] | None:
    fall = _fall(run)
    advice = "A smaller algorithm.learning_rate may help."
    return _banner("diverged", f"{run.rounds.metric} {fall}", advice) if fall else None


def _off_centre(run: RunFiles, _: State, __: str, ___: float) -> dict[str, Any] | None:
    found = run.rounds.control_sum
    if found is None or found <= LARGEST_CONTROL_SUM:
        return None
    last = run.happenings.last("off centre")
    title = f"The control variates do not sum to zero: {found:.1e}"
    return _banner("control sum", title, last.text if last else "The model is no longer the one of the method.")


def _certificate(run: RunFiles, _: State, __: str, now: float) -> dict[str, Any] | None:
    last = run.happenings.last("certificate")
    if last is None or now - last.time > CERTIFICATE_SECONDS:
        return None
    return _banner("certificate", "A certificate ends soon", last.text, [last.client] if last.client else [])
