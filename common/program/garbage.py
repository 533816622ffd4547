"""Python's search for garbage, where messages come and go by the thousand."""

from __future__ import annotations

import gc

MOST_NEW_OBJECTS = 20_000  # before it is looked for: those of a thousand messages on their way are no garbage


def leave_alone_what_is_loaded() -> None:
    """Look no more through all that was loaded so far, which is most of what there is, and seldom through the rest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(MOST_NEW_OBJECTS)
