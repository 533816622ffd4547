"""A run on its operator's screen: a picture that is drawn anew on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.rounds.records import RoundRecord
from common.units import bytes_text, seconds_text
from server.runs.about import About
from server.runs.client_lines import client_lines
from server.runs.course import Course
from server.runs.now import Now
from server.runs.ticking import every_second

PICTURES_PER_SECOND = 4
FIRST_LINE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 60.0  # between lines
LONGEST_BAR = 40
SHORTEST_BAR = 8
LONGEST_SPARKLINE = 40
SPARKS = "▁▂▃▄▅▆▇█"
DOT = " · "


@dataclass(frozen=True)
class View:
    """What is shown of a run, wherever it is shown."""

    about: About
    course: Course
    now: Now
    where: str  # one can look further: the folder, or a page

    def picture(self, width: int) -> RenderableType:
        """Draw all there is, on lines of at most so many characters."""
        now = self.now()
        lines: list[RenderableType] = [self._title(), self._bar(width)]
        if self.course.last is not None:
            lines += [self._score(width), _line(self._bytes(self.course.last))]
        if now.text:
            lines.append(_line(now.text, style="yellow"))
        return Group(*lines, *client_lines(now, self.course, width))

    def line(self) -> str:
        """Say in one line how far the run is, for a log."""
        course, now = self.course, self.now()
        parts = [f"round {course.round}/{self.about.rounds}"]
        if course.best is not None:
            parts.append(f"{course.metric} {course.scores[-1]:.4f} (best {course.best[0]:.4f})")
        parts += self._pace()
        if course.last is not None:
            parts.append(self._bytes(course.last))
            if course.last.clients_missing:
                parts.append(f"{course.last.clients_counted} of {course.last.clients} clients counted")
        if now.text:
            parts.append(now.text)
        return "  ".join(parts)

    def _title(self) -> RenderableType:
        about = self.about
        title = Table.grid(expand=True, padding=(0, 1))
        title.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        title.add_column(no_wrap=True, overflow="ellipsis", justify="right")
        what = Text(DOT.join((about.name, about.algorithm, f"{about.clients} clients")), style="bold")
        title.add_row(what, Text(self.where, style="dim"))
        return title

    def _bar(self, width: int) -> RenderableType:
        done, rounds = self.course.round, self.about.rounds
        text = Text(DOT.join((f"round {done}/{rounds}", *self._pace())), no_wrap=True, overflow="ellipsis")
        length = min(LONGEST_BAR, max(SHORTEST_BAR, width - text.cell_len - 2))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(ProgressBar(total=rounds, completed=done, width=length), text)
        return grid

    def _pace(self) -> list[str]:
        each = self.course.seconds_per_round
        if each is None:
            return []
        left = each * (self.about.rounds - self.course.round)
        return [f"{seconds_text(each)} per round", *([f"{seconds_text(left)} left"] if left else [])]

    def _score(self, width: int) -> Text:
        course = self.course
        if course.best is None:
            return _line(f"{course.metric} is not measured yet", style="dim")
        score, (best, when) = f"{course.metric} {course.scores[-1]:.4f}", course.best
        end = f"best {best:.4f} (round {when})"
        room = width - len(score) - len(end) - 3
        return _line(f"{score} {sparkline(course.scores, min(LONGEST_SPARKLINE, room))}  {end}")

    def _bytes(self, last: RoundRecord) -> str:
        """Say what a client has sent and got; by the paper's count where nothing was encoded."""
        sent = self.course.bytes
        if not sent.payload_up:
            how_much = f"{bytes_text(last.paper_bits_up / 8)} per client in values alone"
        elif not sent.wire_up:
            how_much = f"{bytes_text(sent.payload_up)} per client{DOT}got {bytes_text(sent.payload_down)}"
        else:
            up = f"{bytes_text(sent.wire_up)} per client (model {bytes_text(sent.payload_up)})"
            how_much = f"{up}{DOT}got {bytes_text(sent.wire_down)}"
        return f"sent {how_much}{DOT}density {last.density_up:.2g}"


def live_view(console: Console, view: View) -> AbstractContextManager[None]:
    """Show a run while it goes on, in the way that suits who looks at it."""
    return _drawn(console, view) if console.is_interactive else _logged(console, view)


def sparkline(values: list[float], length: int) -> str:
    """Draw values as a row of at most so many bars, the last one at its end."""
    count = min(length, len(values))
    if count < 2:
        return ""
    shown = [values[(len(values) - 1) * place // (count - 1)] for place in range(count)]
    low, span = min(shown), max(shown) - min(shown)
    return "".join(SPARKS[int((value - low) / span * (len(SPARKS) - 1) + 0.5) if span else 0] for value in shown)


@contextmanager
def _drawn(console: Console, view: View) -> Iterator[None]:
    """Keep the picture below what is said; it goes when the run is over, as the last words say it all again."""

    def draw() -> RenderableType:
        return view.picture(console.width)

    with Live(get_renderable=draw, console=console, refresh_per_second=PICTURES_PER_SECOND, transient=True):
        yield


@contextmanager
def _logged(console: Console, view: View) -> Iterator[None]:
    """Print a line when there is something new, at first every few seconds and later every minute."""
    last_round, pause = view.course.round, FIRST_LINE_SECONDS
    next_line = time.monotonic() + pause

    def print_now_and_then() -> None:
        nonlocal last_round, pause, next_line
        if view.course.round > last_round and time.monotonic() >= next_line:
            console.print(view.line(), markup=False, highlight=False, soft_wrap=True)
            last_round, pause = view.course.round, min(2 * pause, LONGEST_PAUSE_SECONDS)
            next_line = time.monotonic() + pause

    with every_second(print_now_and_then):
        yield


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
