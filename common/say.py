"""How everything that runs tells its operator what there is to know: through a function like `print`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

Say = Callable[[str], None]

NOTICE = "notice"  # the kind of a line of which nothing more is known
LONGEST_LINE = 500  # characters
LONGEST_NAME = 100


class Event(str):
    """A line that is said, with what kind of thing has happened, and to which client."""

    __slots__ = ("client", "kind")

    kind: str
    client: str  # "" where it is not about one

    def __new__(cls, text: str, *, kind: str, client: str = "") -> Event:
        """Say it as any other line."""
        event = super().__new__(cls, text)
        event.kind = kind
        event.client = client
        return event

    @classmethod
    def of(cls, text: str) -> Event:
        """Return what anybody has said as one short line: what clients say may have anything in it."""
        kind, client = (text.kind, text.client) if isinstance(text, Event) else (NOTICE, "")
        return cls(one_line(text), kind=kind, client=one_line(client, LONGEST_NAME))


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """Return what a peer says as it may be shown and kept: one line, of no more characters, without escapes."""
    cut = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return "".join(character if character.isprintable() else " " for character in cut)


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return names as they stand in a sentence."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def sparing(say: Say, lines: int, seconds: float) -> Say:
    """Return a way to say no more than so many lines in a while, whoever makes them; the rest is lost."""
    end, left = 0.0, lines

    def say_sparingly(text: str) -> None:
        nonlocal end, left
        if (now := time.monotonic()) >= end:
            end, left = now + seconds, lines
        left -= 1
        if left >= 0:
            say(text)

    return say_sparingly
