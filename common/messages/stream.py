"""What both ends of a stream have in common: its method and options, and payloads that come in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from common.codec.payload import checksum_of
from common.errors import MessageError
from common.messages.flower import CLIENT_CANNOT_NOW, CLIENT_FAILED, CLIENT_FORGOT
from common.messages.messages_pb2 import Failure, Held
from common.storage.spool import PIECE_BYTES, Spool

_Result = TypeVar("_Result")

METHOD = "/proxskip.Link/Work"
PREFIX_BYTES = 5  # that gRPC puts before each frame
LARGEST_FRAME_BYTES = PIECE_BYTES + (1 << 16)  # a piece, and what is around it
SMALLEST_PIECE_BYTES = 1_000  # but for the last one: who sends less keeps the server busy with nothing
# How a client's failure is called on the stream, by the code that Flower's errors have.
FAILURES = {
    CLIENT_FAILED: Failure.FAILED,
    CLIENT_CANNOT_NOW: Failure.CANNOT_NOW,
    CLIENT_FORGOT: Failure.FORGOT,
}
STREAM_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", LARGEST_FRAME_BYTES),
    # Larger frames and windows than gRPC's own: a third of the time for a piece. And no pings to find out what they
    # should be, which go around every small message.
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 1 << 22),
    ("grpc.http2.write_buffer_size", 1 << 22),
    ("grpc.http2.bdp_probe", 0),
    # A peer that does not answer for a minute is gone; on a thin link an answer may stand in line behind a piece.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 40_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


def place_to_go_on(payload: bytes | Spool, held: Held) -> int:
    """Return how much of a payload the other side has already, if it is this one."""
    has_some = 0 < held.bytes <= len(payload)
    return held.bytes if has_some and checksum_of(payload, held.bytes) == held.checksum else 0


async def in_thread_if_large(size: int, action: Callable[..., _Result], *arguments: object) -> _Result:
    """Do what may wait for the disk beside the loop; what is small is in memory."""
    return action(*arguments) if size <= PIECE_BYTES else await asyncio.to_thread(action, *arguments)


class Incoming:
    """A payload on its way here: what is larger than a piece is put together in a file."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.received = 0
        self._payload: bytes | Spool = b"" if size <= PIECE_BYTES else Spool(size)

    def add(self, piece: bytes, place: int | None = None) -> None:
        """Put in the next piece; or one from before, as a stream that goes on may say again what a broken one said."""
        start = self.received if place is None else place
        end = start + len(piece)
        if not start <= self.received or end > self.size:
            raise MessageError(f"a piece that goes beyond the {self.size} bytes that were announced")
        if isinstance(self._payload, Spool):
            self._payload.write(start, piece)
            self.received = max(self.received, end)  # a late piece of the broken stream may be written after newer ones
        else:
            self._payload = self._payload[:start] + piece
            self.received = end

    @property
    def is_complete(self) -> bool:
        """Say whether all of it is here."""
        return self.received == self.size

    @property
    def payload(self) -> bytes | Spool:
        """Return the payload, when it is complete."""
        return self._payload

    def held(self, task: int) -> Held:
        """Return what is here, for the other side to go on from."""
        count = self.received  # which may grow meanwhile
        return Held(task=task, bytes=count, checksum=checksum_of(self._payload, count))
