"""What has happened in a run beside its rounds: a line of events.jsonl for each thing that its operator was told."""

from __future__ import annotations

import json
import threading
from contextlib import suppress

from common.errors import UserError
from common.rounds.records import utc_now
from common.say import Event, Say
from server.runs.run_folder import RunFolder

UNSEEN = ("joined",)  # kinds that are written down only: a thousand clients would fill the screen

_ONE_AT_A_TIME = threading.Lock()  # the link, the clients' processes and the run itself all say something


class EventLog:
    """Keeps what is said of a run, and passes it on."""

    def __init__(self, folder: RunFolder, say: Say) -> None:
        self._folder = folder
        self._say = say

    def say(self, text: str) -> None:
        """Write a line down, and show it."""
        event = Event.of(text)
        self.note(event)
        if event.kind not in UNSEEN:
            self._say(event)

    def note(self, text: str) -> None:
        """Write a line down, once the run is begun; a disk that has no room for it is no reason to stop."""
        event = Event.of(text)
        line = {"time": utc_now(), "kind": event.kind, "client": event.client, "text": event}
        with _ONE_AT_A_TIME, suppress(UserError):
            if self._folder.is_begun:
                self._folder.add_event(json.dumps(line))
