"""What the process of a run says it is doing: status.json, which it replaces every second."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.say import LONGEST_LINE
from server.runs.status import FILE, MOST_CLIENTS, MOST_WAITED_FOR
from server.watch.growing_file import read_regular
from server.watch.loose import clock, count, json_object, names, number, table, text

MOST_STATES = 10


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """What one client is doing."""

    state: str
    done: float | None
    of: float | None
    since: float | None  # seconds since 1970, as all times here


@dataclass(frozen=True, kw_only=True)
class Status:
    """The newest status of a run; of a run without one, all is unknown."""

    time: float | None = None
    state: str = ""
    text: str = ""
    command: str = ""
    how: str = ""
    task: str = ""
    algorithm: str = ""
    data: str = ""
    metric: str = ""
    weights: int | None = None
    rounds: int | None = None
    clients: int | None = None
    needed: int | None = None
    round: int | None = None
    round_started: float | None = None
    deadline_seconds: float | None = None
    counted: int | None = None
    waiting_for: list[str] = field(default_factory=list)
    clients_by_state: dict[str, int] = field(default_factory=dict)
    by_client: dict[str, ClientStatus] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Status:
        """Read a run's status; an empty one where there is none, or none that can be read."""
        try:
            values = json_object(read_regular(folder / FILE))
        except OSError:
            values = {}
        by_state = list(table(values.get("clients_by_state")).items())
        by_client = list(table(values.get("by_client")).items())
        return cls(
            time=clock(values.get("time")),
            state=text(values.get("state")),
            text=text(values.get("text"), LONGEST_LINE),
            command=text(values.get("command"), LONGEST_LINE),
            how=text(values.get("how")),
            task=text(values.get("task")),
            algorithm=text(values.get("algorithm")),
            data=text(values.get("data"), LONGEST_LINE),
            metric=text(values.get("metric")),
            weights=count(values.get("weights")),
            rounds=count(values.get("rounds")),
            clients=count(values.get("clients")),
            needed=count(values.get("needed")),
            round=count(values.get("round")),
            round_started=clock(values.get("round_started")),
            deadline_seconds=number(values.get("deadline_seconds")),
            counted=count(values.get("counted")),
            waiting_for=names(values.get("waiting_for"), MOST_WAITED_FOR),
            clients_by_state={text(name): count(many) or 0 for name, many in by_state[:MOST_STATES]},
            by_client={text(name): _client(table(one)) for name, one in by_client[:MOST_CLIENTS]},
        )


def _client(values: dict[str, Any]) -> ClientStatus:
    return ClientStatus(
        state=text(values.get("state")),
        done=number(values.get("done")),
        of=number(values.get("of")),
        since=clock(values.get("since")),
    )
