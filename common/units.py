"""Numbers as people read them: bytes, times, speeds."""

from __future__ import annotations

STEPS = ("", "k", "M", "G", "T", "P")
A_MINUTE_SECONDS = 60
AN_HOUR_SECONDS = 3600
A_DAY_SECONDS = 86_400


def bytes_text(count: float) -> str:
    """Return a number of bytes, such as 812 B, 9.4 kB or 45 MB."""
    return f"{_scaled(count)}B"


def speed_text(bits_per_second: float) -> str:
    """Return the speed of a link, such as 1.1 Mbit/s."""
    return f"{_scaled(bits_per_second)}bit/s"


def seconds_text(seconds: float) -> str:
    """Return a time with as much detail as it is worth: 0.031 s, 2.5 s, 48 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds < 0.9995:
        return f"{seconds:.2g} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, smaller_unit, smaller in (
        (A_DAY_SECONDS, "d", AN_HOUR_SECONDS, "h"),
        (AN_HOUR_SECONDS, "h", A_MINUTE_SECONDS, "min"),
        (A_MINUTE_SECONDS, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // smaller_unit
            return f"{whole // unit} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def _scaled(number: float) -> str:
    """Return a number with two digits at least, and the prefix of its unit."""
    for prefix in STEPS:
        if number < 999.5 or prefix == STEPS[-1]:
            break
        number /= 1000
    return f"{number:.1f} {prefix}" if prefix and number < 99.95 else f"{number:.0f} {prefix}"
