"""All that is read of one run's folder, kept up with what is new in it."""

from __future__ import annotations

from pathlib import Path

from server.runs.run_folder import CLIENTS, EVENTS, EXPERIMENT, MODEL, ROUNDS
from server.runs.status import FILE as STATUS
from server.watch.clients import ClientLines
from server.watch.events import Happenings
from server.watch.model_file import ModelHead
from server.watch.rounds import Rounds
from server.watch.settings import Settings
from server.watch.status import Status

Signature = tuple[tuple[int, int, int], ...]  # inode, size and time of each file


class RunFiles:
    """One run as its folder tells it; what cannot be read is a `problem`, and never an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._forget()
        self.problem = ""
        self._seen: Signature = ()
        self._seen_with_clients: Signature = ()

    def _forget(self) -> None:
        self.happenings = Happenings(self.folder)
        self.rounds = Rounds(self.folder)
        self.clients = ClientLines(self.folder)
        self.status = Status()
        self.settings = Settings()
        self.model = ModelHead()
        self.is_read = False
        self.is_finished = False
        self.is_deployed = False  # as far as its files tell: a simulation knows no single client
        self.last_written = 0.0  # when its newest line was, in seconds since 1970

    @property
    def folder_changed(self) -> float:
        """Return when something was last made or replaced in the folder."""
        return _mark(self.folder)[2] / 1e9

    def refresh(self, *, with_clients: bool) -> None:
        """Read what is new; what is each client's own only where somebody looks at it."""
        signature = tuple(_mark(self.folder / name) for name in (ROUNDS, EVENTS, STATUS, EXPERIMENT, MODEL, CLIENTS))
        try:
            if signature != self._seen:
                self._seen = signature
                self._read(signature)
            if with_clients and (signature != self._seen_with_clients or not self.clients.are_sums_complete):
                self._seen_with_clients = signature
                self.clients.refresh()
        except Exception as error:  # whatever is in this folder, the others are to be shown
            self._forget()
            self.problem = f"cannot be read: {getattr(error, 'strerror', None) or repr(error)}"

    def _read(self, signature: Signature) -> None:
        self.happenings.refresh()
        self.rounds.refresh(self.happenings.beginnings)
        self.status = Status.read(self.folder)
        self.settings = Settings.read(self.folder)
        self.is_finished = (self.folder / MODEL).is_file()
        self.is_deployed = (self.folder / CLIENTS).exists()
        self.model = ModelHead.read(self.folder) if self.is_finished else ModelHead()
        self.last_written = max(modified for _, _, modified in signature[:2]) / 1e9
        self.is_read = True
        damaged = self.rounds.unreadable and not self.rounds.numbers
        self.problem = "cannot be read: rounds.jsonl is damaged, or another program's" if damaged else ""


def _mark(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns
