"""The runs as Prometheus reads them: its text format, a family after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from server.watch.loose import count
from server.watch.run_view import Json, RunView
from server.watch.state import State

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HELP = {
    "live": "1 while a process is at work on the run",
    "waiting": "1 while the run waits for a client",
    "round": "rounds that are done",
    "rounds": "rounds that the run is to have",
    "score": "the newest value of the run's metric",
    "sent_bytes": "bytes that a client has sent so far: encoded, or 4 for each nonzero value",
    "seconds_per_round": "median of the last rounds",
    "seconds_since_round": "since the last round of a live run was done",
    "off_centre": "norm of the mean of the control variates, relative to theirs: zero up to rounding",
    "clients": "clients by what they are doing; late: the run waits for them; away: also who missed the last round",
}

Sample = tuple[str, dict[str, str], float | None]  # family, labels, value


def metrics(views: Iterable[RunView]) -> str:
    """Return all runs in Prometheus' text format."""
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for view in views:
        for family, labels, value in _samples(view):
            if value is not None:
                written = ",".join(f'{name}="{_escaped(label)}"' for name, label in labels.items())
                lines[family].append(f"proxskip_{family}{{{written}}} {value:.17g}")
    heads = {name: f"# HELP proxskip_{name} {text}\n# TYPE proxskip_{name} gauge" for name, text in HELP.items()}
    return "".join(f"{heads[family]}\n" + "\n".join(lines[family]) + "\n" for family in HELP if lines[family])


def _samples(view: RunView) -> Iterator[Sample]:
    summary, state, rounds = view.summary(), view.state, view.run.rounds
    run = {"run": view.id}
    yield "live", run, float(state.is_going_on)
    yield "waiting", run, float(state.name == "waiting")
    yield "round", run, summary["round"]
    yield "rounds", run, summary["rounds"]
    yield "score", run | {"metric": summary["metric"]}, summary["score"]
    yield "sent_bytes", run | {"kind": summary["sent_kind"]}, summary["sent_bytes_per_client"]
    yield "seconds_per_round", run, rounds.seconds_per_round
    yield "seconds_since_round", run, _seconds_since_round(view, state)
    yield "off_centre", run, rounds.control_sum
    for name, clients in _clients(view, summary, state).items():
        yield "clients", run | {"state": name}, clients


def _seconds_since_round(view: RunView, state: State) -> float | None:
    last = view.last_sign_of_work
    return max(0.0, view.now - last) if state.is_going_on and last is not None else None


def _clients(view: RunView, summary: Json, state: State) -> dict[str, int]:
    """Return clients by state; who was not counted in the newest round is away, whatever the process says."""
    status, newest = view.run.status, view.run.rounds.newest
    if not state.is_going_on:
        return {}
    late = len(status.waiting_for) if state.name == "waiting" else 0
    counted = count(newest.get("clients_counted")) or 0
    missed = max(0, int(summary["clients"] or 0) - counted) if newest else 0
    told = status.clients_by_state or ({"answered": counted} if newest else {})
    return told | {"late": late, "away": max(missed, told.get("away", 0))}


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
