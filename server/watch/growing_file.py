"""A file of lines that grows while it is read: what is new in it, whole lines only, and whether all begins anew."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 1 << 25  # at a time; a line that is longer is none of ours
SMALL_BYTES = 1 << 20  # of a file that is read whole
REMEMBERED_BYTES = 256  # before the place where the last reading ended


@dataclass(frozen=True, slots=True)
class News:
    """What a reading has found."""

    anew: bool  # the file was cut or replaced: what was read before holds no more
    lines: list[bytes]
    is_all: bool  # that there is for now


class GrowingFile:
    """Remembers where the last reading ended, and how what is before that place ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self._inode = 0  # not known yet
        self._before = b""

    def readings(self) -> Iterator[News]:
        """Read to the end, so much at a time that a long file fits into memory."""
        while True:
            news = self.read(MOST_BYTES)
            yield news
            if news.is_all:
                return

    def read(self, most_bytes: int = MOST_BYTES) -> News:
        """Return the lines that are new; a last one without its end waits until it is whole."""
        try:
            with open_regular(self.path) as file:
                anew = self._is_another(file)
                if anew:
                    self.start_at(0)
                self._inode = os.fstat(file.fileno()).st_ino
                file.seek(self.offset)
                data = file.read(most_bytes)
        except FileNotFoundError:
            anew, data = self.offset > 0, b""
            self.start_at(0)
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) == MOST_BYTES else 0)
        self.offset += end
        self._before = (self._before + data[:end])[-REMEMBERED_BYTES:]
        return News(anew, [line for line in data[:end].split(b"\n") if line], len(data) < most_bytes)

    def start_at(self, offset: int) -> None:
        """Go on from another place, which is the start of a line."""
        self.offset = offset
        self._before = b""

    def _is_another(self, file: BinaryIO) -> bool:
        """Say whether the file does not go on where we left it: a run that is resumed cuts its files."""
        if not self.offset:
            return False
        place = os.fstat(file.fileno())
        if self._inode not in (0, place.st_ino) or place.st_size < self.offset:
            return True
        file.seek(self.offset - len(self._before))
        return file.read(len(self._before)) != self._before


def open_regular(path: Path) -> BinaryIO:
    """Open a file; a pipe or a device, which could keep us waiting, is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} is not a file")
    return os.fdopen(descriptor, "rb", buffering=0)


def read_regular(path: Path) -> bytes:
    """Return what is in a small file; a large one is refused."""
    with open_regular(path) as file:
        content = file.read(SMALL_BYTES + 1)
    if len(content) > SMALL_BYTES:
        raise OSError(errno.EFBIG, f"{path.name} is too long")
    return content


def start_of_last_lines(path: Path, lines: int, block_bytes: int = 1 << 20) -> int:
    """Return where the last so many whole lines of a file begin."""
    with open_regular(path) as file:
        place = file.seek(0, os.SEEK_END)
        left = lines + 1  # the end of the line before them too
        while place:
            start = max(0, place - block_bytes)
            file.seek(start)
            block = file.read(place - start)
            end = len(block)
            while left and (end := block.rfind(b"\n", 0, end)) >= 0:
                left -= 1
            if not left:
                return start + end + 1
            place = start
    return 0
