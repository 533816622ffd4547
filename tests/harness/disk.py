"""What is asked of the disk."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from common.storage import slots


def waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the descriptor of each write from now on that is on the disk when it is done."""
    waits: list[int] = []
    write = os.pwritev

    def noted(descriptor: int, parts: Sequence[memoryview], start: int, flags: int) -> int:
        if flags & slots.UNTIL_ON_DISK:
            waits.append(descriptor)
        return write(descriptor, parts, start, flags)

    monkeypatch.setattr(os, "pwritev", noted)
    return waits
