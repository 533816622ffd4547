"""What a client's operator sees: lines as they are said, and below them on a terminal one that is kept up to date."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

from common.say import Event
from common.units import bytes_text

SECONDS_BETWEEN_LINES = 60.0  # in a log


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a client is."""

    doing: str
    round: int = 0  # 0: none yet
    rounds: int = 0
    done: int = 0
    of: int = 0  # 0: nobody knows
    bytes_up: int = 0
    bytes_down: int = 0


class Screen:
    """A terminal, or a log; used for the time of a membership."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown = ""
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def __enter__(self) -> Screen:
        if self._console.is_interactive:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say_as(self, name: str) -> Callable[[str], None]:
        """Return how a client says something; it may be the server's words."""

        def say(text: str) -> None:
            self._print(f"{name}: {Event.of(text)}")

        return say

    def show(self, standings: Sequence[Standing]) -> None:
        """Show how far the clients of this process are, if that is news; in a log only now and then."""
        line = line_of(standings)
        if line == self._shown:
            return
        if self._console.is_interactive:
            self._shown = line
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif time.monotonic() >= self._next_line and any(one.round for one in standings):
            self._shown, self._next_line = line, time.monotonic() + SECONDS_BETWEEN_LINES
            self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def line_of(standings: Sequence[Standing]) -> str:
    """Say in one line how far the clients of a process are."""
    furthest = max(standings, key=lambda one: one.round)
    up, down = sum(one.bytes_up for one in standings), sum(one.bytes_down for one in standings)
    parts = [f"round {furthest.round} of {furthest.rounds}"] if furthest.round else []
    parts.append(_doing(furthest) if len(standings) == 1 else _counted(standings))
    parts += [f"sent {bytes_text(up)}, got {bytes_text(down)}"] if furthest.round else []
    return " · ".join(parts)


def _doing(one: Standing) -> str:
    if not one.of:
        return one.doing
    return f"{one.doing}, step {one.done} of {one.of}" if one.doing == "training" else _percent(one)


def _percent(one: Standing) -> str:
    return f"{one.doing}, {100 * one.done // one.of} %"


def _counted(standings: Sequence[Standing]) -> str:
    counts = Counter(one.doing for one in standings)
    return f"{len(standings)} clients: " + ", ".join(f"{count} {doing}" for doing, count in counts.items())
