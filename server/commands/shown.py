"""A run as its operator sees it, from its first round to its last words: what deployed and simulated ones share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import DivergedError, UserError
from common.say import Event
from server.commands.console import Terminal
from server.runs.about import About
from server.runs.course import Course
from server.runs.events import EventLog
from server.runs.now import Now
from server.runs.run_folder import RunFolder
from server.runs.status import status_kept
from server.runs.view import View, live_view


@contextmanager
def shown(terminal: Terminal, about: About, course: Course, now: Now, where: str = "") -> Iterator[None]:
    """Show a run while it goes on, and keep its status.json; where it does not get to its end, say how to go on."""
    log = EventLog(RunFolder(about.folder), terminal.say)
    try:
        with status_kept(about, now), live_view(terminal, View(about, course, now, where or str(about.folder))):
            yield
    except (KeyboardInterrupt, SystemExit):
        log.say(Event(f"stopped after round {course.round} of {about.rounds}", kind="stopped"))
        terminal.say(f"to go on: {about.command}")
        raise
    except UserError as error:  # which is told when the program ends
        log.note(Event(str(error), kind="failed"))
        if not isinstance(error, DivergedError):  # which would happen again
            terminal.say(f"to go on: {about.command}")
        raise
