"""Few points for a long curve: those that the eye would miss are kept."""

from __future__ import annotations

from collections.abc import Sequence


def kept_points(values: Sequence[float], most: int) -> list[int]:
    """Return the places of at most so many values: first and last, and of each stretch the lowest and the highest."""
    size = len(values)
    if size <= most:
        return list(range(size))
    stretches = (most - 2) // 2
    kept = {0, size - 1}
    for one in range(stretches):
        stretch = range(one * size // stretches, (one + 1) * size // stretches)
        kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return sorted(kept)


def few(values: Sequence[float], most: int) -> list[float]:
    """Return at most so many values, extremes among them."""
    return [values[place] for place in kept_points(values, most)]
