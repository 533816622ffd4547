"""The live view of a run: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from common.rounds.records import RoundRecord

MOST_NAMES = 3
SECONDS_BETWEEN_LINES = 10.0


class LiveView:
    """Shows the newest round: what a client has sent and got so far, densities, the task's metric."""

    def __init__(self, console: Console, progress: Progress, title: str, rounds: int, metric: str) -> None:
        self._console = console
        self._progress = progress
        self._bar = progress.add_task(title, total=rounds, status="starting")
        self._title = title
        self._rounds = rounds
        self._metric = metric
        self._score = ""
        self._bytes: defaultdict[str, float] = defaultdict(float)  # of a client so far
        self._last_line = time.monotonic()

    def show(self, record: RoundRecord) -> None:
        """Update with a round's record."""
        if self._metric in record.metrics:
            self._score = f"  {self._metric} {record.metrics[self._metric]:.4f}"
        for way in ("payload_bytes_up", "payload_bytes_down", "message_bytes_up", "message_bytes_down"):
            self._bytes[way] += (getattr(record, way) or 0) / record.clients
        paper = f"{record.paper_bits_up / 1e6:.3f} Mbit by the paper"
        traffic = f"up {self._kilobytes('up')}, {paper}  down {self._kilobytes('down')}"
        status = f"{traffic}  density {record.density_up:.3g} up {record.density_down:.3g} down{self._score}"
        if record.clients_missing:
            status += f"  without {', '.join(record.missing_names[:MOST_NAMES])}"
        self._progress.update(self._bar, completed=record.round, status=status)
        if not self._console.is_terminal and time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            line = f"{self._title}  round {record.round}/{self._rounds}  {status}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._last_line = time.monotonic()

    def _kilobytes(self, way: str) -> str:
        """Return what our vectors took, and in brackets with all that was around them on the stream."""
        payload, message = self._bytes[f"payload_bytes_{way}"], self._bytes[f"message_bytes_{way}"]
        return f"{payload / 1e3:.1f} kB" + (f" ({message / 1e3:.1f})" if message else "") if payload else "not encoded"


@contextmanager
def live_view(console: Console, *, title: str, rounds: int, metric: str) -> Iterator[LiveView]:
    """Open the live view for the time of a run."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),  # a client may be called [/]
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield LiveView(console, progress, title, rounds, metric)
