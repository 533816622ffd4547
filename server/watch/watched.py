"""All runs under one folder: one reader for however many pages, who share what was read a moment ago."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.watch.comparison import compare
from server.watch.folders import run_folders
from server.watch.loose import iso
from server.watch.run_files import RunFiles
from server.watch.run_view import Json, RunView

SECONDS_BETWEEN_READINGS = 0.9  # pages ask once per second
SECONDS_BETWEEN_SEARCHES = 2.0  # for new runs
SECONDS_FOR_A_LIST = 1.0  # what is not read by then is read the next time
MOST_KEPT_ANSWERS = 100


@dataclass(frozen=True)
class Answer:
    """What was answered to a question, as JSON with the time; the version changes with what is in it."""

    made: float
    version: int
    content: Json
    text: str


class Watched:
    """Keeps what was read of each run, and for a moment what was answered."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs: dict[str, RunFiles] = {}
        self._searched = -SECONDS_BETWEEN_SEARCHES
        self._answers: dict[str, Answer] = {}
        self._reading = threading.Lock()

    def runs(self) -> Answer:
        """Return the list of all runs, the newest first."""
        return self._answer("", lambda: {"runs": [view.summary() for view in self._listed()]})

    def run(self, run_id: str) -> Answer:
        """Return all of a run; a KeyError where there is no such run."""
        return self._answer(f"run {run_id}", lambda: self._view(run_id, with_clients=True).whole())

    def compared(self, run_ids: Sequence[str]) -> Answer:
        """Return several runs side by side; a KeyError where one is not there."""
        ids = list(dict.fromkeys(run_ids))
        key = f"compare {'|'.join(ids)}"
        return self._answer(key, lambda: compare([self._view(one, with_clients=False) for one in ids]))

    def with_runs(self, run_ids: Sequence[str], made: Callable[[Sequence[RunView]], str]) -> str:
        """Return what somebody makes of some runs as they are now; a KeyError where one is not there."""
        with self._reading:
            return made([self._view(one, with_clients=True) for one in dict.fromkeys(run_ids)])

    def with_all(self, made: Callable[[Sequence[RunView]], str]) -> str:
        """Return what somebody makes of all runs as they are now."""
        with self._reading:
            return made(self._listed())

    def _answer(self, question: str, content_of: Callable[[], Json]) -> Answer:
        with self._reading:
            before = self._answers.pop(question, None)
            if before is None or time.monotonic() - before.made > SECONDS_BETWEEN_READINGS:
                before = _answer_after(before, content_of())
            self._answers[question] = before
            while len(self._answers) > MOST_KEPT_ANSWERS:
                del self._answers[next(iter(self._answers))]
            return before

    def _search(self) -> None:
        """Look for new runs, and forget those that are gone."""
        if time.monotonic() - self._searched >= SECONDS_BETWEEN_SEARCHES:
            folders = run_folders(self.root)
            self._runs = {one: self._runs.get(one) or RunFiles(folder) for one, folder in folders.items()}
            self._searched = time.monotonic()

    def _view(self, run_id: str, *, with_clients: bool) -> RunView:
        self._search()
        run = self._runs[run_id]
        run.refresh(with_clients=with_clients)
        return RunView(run_id, run, time.time())

    def _listed(self) -> list[RunView]:
        self._search()
        end = time.monotonic() + SECONDS_FOR_A_LIST
        for run in sorted(self._runs.values(), key=lambda run: -run.folder_changed):
            if time.monotonic() < end:
                run.refresh(with_clients=False)
        now = time.time()
        views = [RunView(one, run, now) for one, run in self._runs.items()]
        return sorted(views, key=lambda view: -(view.started or 0.0))


def _answer_after(before: Answer | None, content: Json) -> Answer:
    """Return an answer whose version says whether it is another than the last."""
    version = 0 if before is None else before.version + (content != before.content)
    text = json.dumps({"time": iso(time.time()), **content}, allow_nan=False, separators=(",", ":"))
    return Answer(time.monotonic(), version, content, text)
