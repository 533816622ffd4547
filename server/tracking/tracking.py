"""Tell tools of a run as it goes, each in a thread of its own: one that is slow, or fails, does not hold up the run."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue

from common.rounds.records import RoundRecord
from common.say import Event, Say
from server.tracking.tracker import TrackedRun, Tracker, tracker_class

Track = Callable[[RoundRecord], None]
LONGEST_END_SECONDS = 30.0  # for what a tool has not taken yet when the run is finished
CREDENTIALS = re.compile(r"//[^/@\s]+@")  # in an address, of which a tool complains; events.jsonl is for everybody
LONGEST_STOP_SECONDS = 1.0  # the same when it is stopped: somebody waits for the prompt


@contextmanager
def tracked(names: Sequence[str], run: TrackedRun, say: Say) -> Iterator[Track]:
    """Yield what is to hear of every round that was written down."""
    followers = [_Follower(name, run, say) for name in dict.fromkeys(names)]
    finished = False
    try:
        yield in_turn(*(follower.tell for follower in followers))
        finished = True
    finally:
        for follower in followers:
            follower.end(finished=finished)


def in_turn(*hearers: Track) -> Track:
    """Return what lets several hear of a round, one after the other."""

    def tell(record: RoundRecord) -> None:
        for hear in hearers:
            hear(record)

    return tell


class _Follower:
    """Tells one tool; when that fails, says so once, and is silent from then on."""

    def __init__(self, name: str, run: TrackedRun, say: Say) -> None:
        self._name = name
        self._run = run
        self._say = say
        self._rounds: SimpleQueue[RoundRecord | None] = SimpleQueue()  # None: there are no more
        self._finished = False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def tell(self, record: RoundRecord) -> None:
        """Hand on a round, as long as anybody takes it."""
        if self._thread.is_alive():
            self._rounds.put(replace(record, by_client={}))  # a slow tool may be thousands of rounds behind

    def end(self, *, finished: bool) -> None:
        """Wait a while until all that was handed on is told."""
        self._finished = finished
        self._rounds.put(None)
        seconds = LONGEST_END_SECONDS if finished else LONGEST_STOP_SECONDS
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._complain(f"it has not taken all rounds {seconds:g} s after the last; rounds.jsonl has them")

    def _follow(self) -> None:
        try:
            tracker = tracker_class(self._name)(self._run)
            self._tell_all(tracker)
            tracker.close(finished=self._finished)
        except (Exception, SystemExit) as error:  # whatever somebody else's library may raise
            self._complain(f"{error or repr(error)}; the run goes on without it")

    def _tell_all(self, tracker: Tracker) -> None:
        """Tell each round once that the tool does not have: after a crash some are lost there, and some come again."""
        newest = tracker.newest_round
        while (record := self._rounds.get()) is not None:
            earlier = self._run.folder.rounds() if record.round > newest + 1 else []
            for one in (*(one for one in earlier if one.round < record.round), record):
                if one.round > newest:
                    tracker.log(one)
                    newest = one.round

    def _complain(self, why: str) -> None:
        shown = CREDENTIALS.sub("//", why)
        self._say(Event(f"--track {self._name}: {shown}", kind="tracker"))
