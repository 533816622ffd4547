"""What has happened in a run: the newest lines of events.jsonl, and those that are marked on its curve."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from common.say import LONGEST_LINE
from server.runs.run_folder import EVENTS
from server.watch.growing_file import GrowingFile
from server.watch.loose import clock, json_object, text

MOST_EVENTS = 200
MOST_MARKS = 50
INFO = "info"
# What an event is at a glance, by its kind.
SIGNS = {
    "joined": "ok",
    "finished": "ok",
    "no answer": "late",
    "late": "late",
    "asking again": "late",
    "left out": "late",
    "off centre": "late",
    "certificate": "late",
    "left": "away",
    "put out": "away",
    "given up": "away",
    "revoked": "away",
    "refused": "away",
    "process ended": "away",
    "stopped": "stopped",
    "failed": "stopped",
    "server killed": "stopped",
    "server failed": "stopped",
}
MARKED = ("late", "away", "stopped")
BEGINNINGS = ("started", "resumed")
ENDINGS = ("stopped", "failed", "server killed", "server failed", "finished")


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of events.jsonl."""

    time: float  # seconds since 1970
    written: str  # the same as it stands there
    kind: str
    client: str
    text: str

    @property
    def sign(self) -> str:
        """Return what it is at a glance."""
        return SIGNS.get(self.kind, INFO)


class Happenings:
    """The newest events of a run, and what follows from them all."""

    def __init__(self, folder: Path) -> None:
        self._file = GrowingFile(folder / EVENTS)
        self._forget()

    def _forget(self) -> None:
        self.newest: deque[Happening] = deque(maxlen=MOST_EVENTS)
        self.marked: deque[Happening] = deque(maxlen=MOST_MARKS)
        self.beginnings: list[float] = []  # when a process took the run up
        self.last_of_run: Happening | None = None  # of those that begin or end a process

    def refresh(self) -> None:
        """Read what is new."""
        for news in self._file.readings():
            if news.anew:
                self._forget()
            for line in news.lines:
                self._add(line)

    def _add(self, line: bytes) -> None:
        values = json_object(line)
        moment = clock(values.get("time"))
        if moment is None:
            return
        kind, client = text(values.get("kind")), text(values.get("client"))
        written, said = text(values.get("time")), text(values.get("text"), LONGEST_LINE)
        happening = Happening(moment, written, kind, client, said)
        self.newest.append(happening)
        if happening.sign in MARKED or kind == "resumed":
            self.marked.append(happening)
        if kind in BEGINNINGS:
            self.beginnings.append(moment)
        if kind in BEGINNINGS + ENDINGS:
            self.last_of_run = happening

    def last(self, kind: str) -> Happening | None:
        """Return the newest event of a kind, among those that are kept."""
        return next((one for one in reversed(self.newest) if one.kind == kind), None)
