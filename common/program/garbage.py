"""Python's search for garbage, where messages come and go by the thousand."""

from __future__ import annotations

import gc


def leave_alone_what_is_loaded() -> None:
    """Look no more through all that was loaded so far, which is most of what there is: it stays anyway."""
    gc.collect()
    gc.freeze()
