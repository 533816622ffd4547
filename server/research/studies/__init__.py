"""The studies of the paper's results: one file each, found by its name."""

from __future__ import annotations

from common.errors import UserError
from common.experiment.plugins import available, nearest

ALL = "all"


def names_of(study: str = ALL) -> list[str]:
    """Return the names of the studies that a name stands for: one, or all of them."""
    known = [found.replace("_", "-") for found in available(__name__)]
    if study != ALL and study not in known:
        hint = f"the nearest is {nearest(study, known)!r}; known: {', '.join(known)}, or {ALL}"
        raise UserError(f"there is no study {study!r}; {hint}")
    return known if study == ALL else [study]
