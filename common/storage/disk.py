"""What a disk may refuse, as one line; and to wait where it is only full."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from common.errors import UserError
from common.say import Say

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
ZEROS_BYTES = 1 << 20  # at a time

_FULL = (errno.ENOSPC, errno.EDQUOT)
_Result = TypeVar("_Result")


class NoRoomError(UserError):
    """The disk is full; what was there before is as it was."""

    public = "its disk is full"


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Turn what the disk refuses into one line."""
    try:
        yield path
    except (OSError, SafetensorError) as error:
        # What safetensors says of the system's error is in its text alone.
        number = getattr(error, "errno", None)
        full = number in _FULL or any(f"(os error {one})" in str(error) for one in _FULL)
        text = f"cannot write {path}: {error}"
        raise NoRoomError(text) if full else UserError(text, public="it cannot write to its disk") from None


def when_there_is_room(write: Callable[[], _Result], say: Say) -> _Result:
    """Write to a disk, and where that is full, wait until it is not: what goes on is worth more than what ends."""
    pause = FIRST_RETRY_SECONDS
    while True:
        try:
            return write()
        except NoRoomError as error:
            say(f"{error}; trying again in {pause:g} s")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_RETRY_SECONDS)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve_room(descriptor: int, size: int) -> None:
    """Take the room for a file of this size now, so that a full disk shows at once."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    for start in range(0, size, ZEROS_BYTES):  # macOS
        os.pwrite(descriptor, bytes(min(ZEROS_BYTES, size - start)), start)
