"""status.json: what a run is at, for programs that only read its folder; replaced every second while it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from common.rounds.records import utc_now, utc_of
from common.say import LONGEST_NAME, one_line
from server.runs.about import About
from server.runs.now import TROUBLE_FIRST, ClientNow, Now, RunNow, State
from server.runs.ticking import every_second

FILE = "status.json"
MOST_CLIENTS = 200  # that are told of one by one
MOST_WAITED_FOR = 10  # that are named


class StatusFile:
    """Writes the file; where that is not possible nobody hears of it, as a run is worth more than who watches it."""

    def __init__(self, about: About, now: Now) -> None:
        self._about = about
        self._now = now

    def write(self) -> None:
        """Say what the run is at."""
        now = self._now()
        self._replace(now, now.text)

    def end(self, state: State, text: str = "") -> None:
        """Say how the run ended, with this process."""
        self._replace(replace(self._now(), state=state, gathering=""), text)

    def _replace(self, now: RunNow, text: str) -> None:
        path = self._about.folder / FILE
        draft = path.with_suffix(".new")
        with suppress(OSError):
            draft.write_text(json.dumps(_status(self._about, now, one_line(text)), indent=1), encoding="utf-8")
            draft.replace(path)


@contextmanager
def status_kept(about: About, now: Now) -> Iterator[None]:
    """Keep status.json for the time of a run, and leave in it how that ended."""
    status = StatusFile(about, now)
    try:
        with every_second(status.write):
            yield
    except (KeyboardInterrupt, SystemExit):
        status.end("stopped")
        raise
    except BaseException as error:
        status.end("failed", str(error))
        raise
    status.end("finished")


def _status(about: About, now: RunNow, text: str) -> dict[str, Any]:
    return {
        "time": utc_now(),
        "state": now.state,
        "text": text,
        "command": about.command,
        "how": about.how,
        "task": about.task,
        "algorithm": about.algorithm,
        "data": about.data,
        "metric": about.metric,
        "weights": about.weights,
        "rounds": about.rounds,
        "clients": about.clients,
        "needed": now.needed,
        "round": now.round,
        "round_started": utc_of(now.round_started) if now.round_started else None,
        "deadline_seconds": now.deadline_seconds,
        "counted": now.counted,
        "waiting_for": [_name(one) for one in islice(now.waiting_for, MOST_WAITED_FOR)],
        "clients_by_state": now.by_state,
        "by_client": _by_client(now.clients),
    }


def _by_client(clients: Mapping[str, ClientNow]) -> dict[str, Any]:
    ranked = sorted(clients.items(), key=lambda item: TROUBLE_FIRST.index(item[1].doing))
    return {_name(name): _client(one) for name, one in ranked[:MOST_CLIENTS]}


def _client(one: ClientNow) -> dict[str, Any]:
    known: dict[str, Any] = {"state": one.doing}
    if one.of:
        known |= {"done": one.done, "of": one.of}
    if one.since:
        known["since"] = utc_of(one.since)
    if one.device:
        known["device"] = one.device
    return known


def _name(name: str) -> str:
    return one_line(name, LONGEST_NAME)
