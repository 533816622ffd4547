"""Bytes in a temporary file without a name: a large payload is there, not in the memory of this process."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from common.storage.disk import NoRoomError, reserve_room

# What is longer is kept in a file, and goes over the wire in pieces of this size. On its way through gRPC and protobuf
# a piece is some eight times in memory, by measure, for each client: pieces of 4 MB save a sixth of a round, and take
# 50 MB more.
PIECE_BYTES = 1 << 20


class SpoolError(NoRoomError):
    """The disk does not take any more."""


class Spool:
    """Bytes of a known number, written anywhere and read by slices; they are gone with the last who knows of them.

    Where the room for them is reserved, a full disk shows now, and not in the middle of writing.
    """

    def __init__(self, size: int, *, reserve: bool = False) -> None:
        self._size = size
        with _refusals():
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open as long as this object lives
            weakref.finalize(self, file.close)
            self._descriptor = file.fileno()
            os.truncate(self._descriptor, size)
            if reserve:
                reserve_room(self._descriptor, size)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        start, stop, _ = place.indices(self._size)
        return os.pread(self._descriptor, stop - start, start)

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Put bytes at a place."""
        rest = memoryview(data).cast("B")
        with _refusals():
            while rest:
                written = os.pwrite(self._descriptor, rest, start)
                rest, start = rest[written:], start + written

    def mapped(self) -> mmap.mmap:
        """Return the bytes as memory, of which there is as much as was read."""
        with _refusals():
            return mmap.mmap(self._descriptor, self._size)


def spooled(parts: Iterable[bytes | memoryview], size: int) -> Spool:
    """Write parts one after the other as they are made."""
    spool, start = Spool(size), 0
    for part in parts:
        spool.write(start, part)
        start += len(part)
    return spool


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpoolError(f"cannot write a temporary file in {tempfile.gettempdir()}: {error.strerror}") from None
