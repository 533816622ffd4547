"""Clients on the operator's screen: a line each, or where they are many a count and the worst of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from common.say import LONGEST_NAME, one_line
from common.units import seconds_text, speed_text
from server.runs.course import ROUNDS_FOR_SLOWEST, Course
from server.runs.now import TROUBLE_FIRST, ClientNow, Doing, RunNow

MOST_ONE_BY_ONE = 8
WORST = 5
OFTEN_SLOWEST = 8  # of the last ten rounds
SIGNS: dict[Doing, tuple[str, str]] = {  # a shape first, then a colour
    "downloading": ("↓", "cyan"),
    "training": ("●", "green"),
    "uploading": ("↑", "cyan"),
    "answered": ("✓", "green"),
    "idle": ("·", "dim"),
    "away": ("○", "yellow"),
    "put out": ("✕", "red"),
}


def client_lines(now: RunNow, course: Course, width: int) -> Iterator[RenderableType]:
    """Draw what the clients do; in a simulation there are none."""
    if not now.clients:
        return
    shown = dict(now.clients)
    if len(shown) > MOST_ONE_BY_ONE:
        counts = " · ".join(f"{count} {doing}" for doing, count in now.by_state.items())
        yield Text(f"  {counts}; the slowest of them:", no_wrap=True, overflow="ellipsis")
        worst = sorted(shown, key=lambda name: _trouble(name, shown[name], course))[:WORST]
        shown = {name: shown[name] for name in worst}
    table = Table.grid(padding=(0, 2, 0, 0))
    for most in (1, width // 3, 14, None):
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=most)
    for name, client in shown.items():
        sign, style = SIGNS[client.doing]
        doing, detail = _doing(now, client), _detail(name, client, course)
        table.add_row(Text(sign, style), Text(one_line(name, LONGEST_NAME)), Text(doing), Text(detail))
    yield table


def _trouble(name: str, client: ClientNow, course: Course) -> tuple[int, int, float]:
    """Return what to sort by: the worst first."""
    return TROUBLE_FIRST.index(client.doing), -course.times_slowest(name), client.since or 0.0


def _doing(now: RunNow, client: ClientNow) -> str:
    if client.doing == "away" and client.since:
        return f"away {seconds_text(round(time.time() - client.since))}"
    if client.doing == "training" and now.state in ("evaluating", "recentring"):
        return now.state
    return client.doing


def _detail(name: str, client: ClientNow, course: Course) -> str:
    parts = [*_how_far(client), *_speed(name, client, course)]
    if client.doing == "away" and client.since:
        parts.append(f"left at {datetime.fromtimestamp(client.since).astimezone():%H:%M:%S}")
    times = course.times_slowest(name)
    if times >= OFTEN_SLOWEST:
        parts.append(f"slowest in {times} of the last {ROUNDS_FOR_SLOWEST}")
    return "   ".join(parts)


def _how_far(client: ClientNow) -> Iterator[str]:
    if not client.of:
        return
    if client.doing == "training":
        yield f"step {client.done} of {client.of}"
    else:
        yield f"{min(100, 100 * client.done // client.of)} %"


def _speed(name: str, client: ClientNow, course: Course) -> Iterator[str]:
    """Return how fast the client's link is: now where it carries something, else in its last upload."""
    seconds = time.time() - client.since if client.since else 0.0
    if client.doing in ("downloading", "uploading") and client.done and seconds > 1.0:
        yield speed_text(8 * client.done / seconds)
    elif name in course.upload_bits_per_second and client.doing != "away":
        yield speed_text(course.upload_bits_per_second[name])
