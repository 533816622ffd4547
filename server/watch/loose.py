"""What a file says, as what it should be: a folder may be old, damaged or written by somebody who means no good."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

from common.rounds.records import utc_of
from common.say import LONGEST_NAME, one_line

LARGEST_COUNT = 10**15  # of bytes, rounds or clients: what is more is nonsense, and no browser counts so far


def json_object(line: bytes) -> dict[str, Any]:
    """Return the object in a line of JSON; an empty one where there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return table(found)


def table(value: object) -> dict[str, Any]:
    """Return a mapping, or an empty one."""
    return value if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST_COUNT:
        return None
    return value if math.isfinite(value) else None


def count(value: object) -> int | None:
    """Return a whole number that is not negative, or None."""
    found = number(value)
    return None if found is None or found < 0 else int(found)


def text(value: object, longest: int = LONGEST_NAME) -> str:
    """Return a short line that may be shown; an empty one where there is none."""
    return one_line(value, longest) if isinstance(value, str) else ""


def names(value: object, most: int) -> list[str]:
    """Return the first names of a list."""
    return [text(one) for one in value[:most]] if isinstance(value, list) else []


def clock(value: object) -> float | None:
    """Return an ISO 8601 time as seconds since 1970, or None."""
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    except (ValueError, OverflowError, OSError):
        return None


def iso(moment: float | None) -> str | None:
    """Return seconds since 1970 as ISO 8601 in UTC; None for what is no time of any calendar."""
    try:
        return None if moment is None else utc_of(moment)
    except (ValueError, OverflowError, OSError):
        return None
