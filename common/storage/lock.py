"""A file or folder that one process has for itself; it is free again when that ends, however it does."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import UserError
from common.storage.disk import writing

SECONDS_BETWEEN_TRIES = 0.1


@contextmanager
def locked(path: Path, seconds: float, taken: str) -> Iterator[None]:
    """Have a path for ourselves; a process that is about to end is waited for, and then `taken` is the answer."""
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY)
    try:
        end = time.monotonic() + seconds
        while not _lock(descriptor):
            if time.monotonic() > end:
                raise UserError(taken)
            time.sleep(SECONDS_BETWEEN_TRIES)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Say whether a process has a path for itself at this moment."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the lock that goes with an open file, and with the process that has it open."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
