"""Who follows a run, from its first round to its last words: what deployed and simulated ones share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from common.errors import DivergedError, UserError
from common.experiment.experiment import Experiment
from common.say import Event
from server.commands.console import Terminal
from server.commands.watching import watching
from server.runs.about import About
from server.runs.course import Course
from server.runs.events import EventLog
from server.runs.now import Now
from server.runs.run_folder import RunFolder
from server.runs.status import status_kept
from server.runs.view import View, live_view
from server.tracking.tracker import TrackedRun
from server.tracking.tracking import tracked


@dataclass(frozen=True, kw_only=True)
class Audience:
    """A terminal, and at the operator's wish trackers and a browser."""

    terminal: Terminal
    command: str  # that goes on with the run where it is stopped
    trackers: Sequence[str] = ()
    watch: bool = False

    @contextmanager
    def following(self, experiment: Experiment, about: About, course: Course, now: Now) -> Iterator[None]:
        """Show a run while it goes on, and keep its status.json; where it does not get to its end, say how to go on."""
        folder, say = RunFolder(about.folder), self.terminal.say
        log = EventLog(folder, say)
        try:
            with (
                status_kept(about, now),
                watching(about.folder, say, wanted=self.watch),
                live_view(self.terminal, View(about, course, now, str(about.folder))),
                tracked(self.trackers, TrackedRun(folder=folder, experiment=experiment), log.say) as track,
            ):
                course.tell = track
                yield
        except (KeyboardInterrupt, SystemExit):
            log.say(Event(f"stopped after round {course.round} of {about.rounds}", kind="stopped"))
            say(f"to go on: {about.command}")
            raise
        except UserError as error:  # which is told when the program ends
            log.note(Event(str(error), kind="failed"))
            if not isinstance(error, DivergedError):  # which would happen again
                say(f"to go on: {about.command}")
            raise
