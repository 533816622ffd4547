"""Numbers, times and names as people say them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime

SECONDS_A_MINUTE, SECONDS_AN_HOUR, SECONDS_A_DAY = 60, 3600, 86400


def span(seconds: float) -> str:
    """Return a time as two units at most: 0.4 s, 23 s, 2 min 45 s, 3 h 5 min."""
    if seconds < 9.95:  # two digits
        return f"{seconds:.2g} s"
    whole = int(seconds)
    units = ((SECONDS_A_DAY, "d"), (SECONDS_AN_HOUR, "h"), (SECONDS_A_MINUTE, "min"), (1, "s"))
    for (size, unit), (smaller, lesser) in itertools.pairwise(units):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {lesser}" if rest else "")
    return f"{whole} s"


def size(count: float) -> str:
    """Return bytes in three digits: 812 B, 47.1 kB, 2.74 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return names as they stand in a sentence."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def iso(moment: float | None) -> str | None:
    """Return seconds since 1970 as ISO 8601 in UTC; None for what is no time of any calendar."""
    try:
        written = None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None
    return written and written.replace("+00:00", "Z")
