"""Times as the page reads them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(moment: float | None) -> str | None:
    """Return seconds since 1970 as ISO 8601 in UTC; None for what is no time of any calendar."""
    try:
        written = None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None
    return written and written.replace("+00:00", "Z")
