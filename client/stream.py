"""One stream to the server: frames that come in are dealt with in turn, frames that go out stand in line."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from client.link import Link
from common.errors import MessageError
from common.messages.messages_pb2 import (
    Answer,
    Failure,
    Finished,
    FromClient,
    FromServer,
    Goodbye,
    Held,
    Hello,
    Progress,
)
from common.messages.messages_pb2 import Task as TaskFrame
from common.messages.stream import METHOD, PREFIX_BYTES, SMALLEST_PIECE_BYTES, STREAM_OPTIONS, Incoming, place_to_go_on
from common.storage.spool import PIECE_BYTES, Spool, SpoolError
from common.units import bytes_text, seconds_text

FIRST_WORD_SECONDS = 30.0  # in which a server says anything at all to a client that has come
MOST_PROGRESS_IN_LINE = 10  # behind an upload; nobody wants to know later
KEPT_FREE_BYTES = 1 << 28  # of the disk, or half of what is left of it

CHANNEL_OPTIONS = (
    *STREAM_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # a new connection is a new one, not a share in one that may be dead
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # how long an attempt may take
)


def channel_to(link: Link) -> grpc.aio.Channel:
    """Return a channel to the server, which several clients of a process may share."""
    options: list[tuple[str, int | str]] = list(CHANNEL_OPTIONS)
    if link.root_certificates is None:
        return grpc.aio.insecure_channel(link.address, options)
    options.append(("grpc.ssl_target_name_override", link.host))
    credentials = grpc.ssl_channel_credentials(link.root_certificates, link.private_key, link.certificate)
    return grpc.aio.secure_channel(link.address, credentials, options)


@dataclass
class Summary:
    """What a client did in a run."""

    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0

    def note_task(self, seconds: float) -> None:
        """Count a task that is done."""
        self.seconds += seconds

    def told(self, finished: Finished) -> str:
        """Return what to say when a run is over, and begin anew."""
        carried = f"sent {bytes_text(self.bytes_up)}, got {bytes_text(self.bytes_down)}"
        own = f"{finished.counted} counted of this client, {carried}, {seconds_text(self.seconds)} of work"
        self.bytes_down = self.bytes_up = 0
        self.seconds = 0.0
        return f"{finished.summary}; {own}; waiting for the next run"


@dataclass(eq=False)
class Hand:
    """A task at hand: what is asked, and when it is done what is answered."""

    id: int
    question: bytes
    incoming: Incoming
    started: float  # when its first frame came
    download_seconds: float = 0.0
    is_here: bool = False  # all of it
    is_wanted: bool = True  # the answer, by the server, as far as we know
    held_there: Held | None = None  # what the server has of the answer
    reply: bytes = b""
    failure: Failure | None = None
    payload: bytes | Spool = b""
    is_done: bool = False

    def goes_on(self, frame: TaskFrame) -> bool:
        """Say whether a frame brings what is still missing here."""
        return (self.incoming.size, self.incoming.received) == (frame.payload_bytes, frame.offset)

    def let_go(self) -> None:
        """Keep nothing of what nobody waits for, also where it stands in line to be done."""
        self.is_wanted = False
        self.question, self.incoming = b"", Incoming(0)


class Pace:
    """Keeps uploads slow, on average over a piece of a message, so that a link is left for others."""

    def __init__(self, kilobits_a_second: float | None) -> None:
        self._seconds_a_byte = 8 / (1000 * kilobits_a_second) if kilobits_a_second else 0.0
        a_second = int(1000 * kilobits_a_second / 8) if kilobits_a_second else PIECE_BYTES
        self.piece_bytes = min(PIECE_BYTES, max(SMALLEST_PIECE_BYTES, a_second))

    async def keep(self, sent_bytes: int) -> None:
        """Wait as long as what was just sent may take."""
        if self._seconds_a_byte:
            await asyncio.sleep(sent_bytes * self._seconds_a_byte)


class Stream:
    """A stream as long as it lasts; what was carried is counted."""

    def __init__(self, channel: grpc.aio.Channel, pace: Pace, summary: Summary) -> None:
        self._call = channel.stream_stream(METHOD)()
        self._pace = pace
        self._outbox: asyncio.Queue[Hand | FromClient | None] = asyncio.Queue()
        self._in_line: set[int] = set()  # tasks whose answers are in the outbox
        self._writing: asyncio.Task[None] | None = None
        self._summary = summary

    def open(self, hello: Hello) -> None:
        """Begin the conversation."""
        self._outbox.put_nowait(FromClient(hello=hello))
        self._writing = asyncio.create_task(self._write_all())

    def close(self) -> None:
        """Take leave when all before is sent; the server then ends the stream."""
        self._outbox.put_nowait(FromClient(goodbye=Goodbye()))
        self._outbox.put_nowait(None)

    def abandon(self) -> None:
        """Let go of a stream that is of no more use."""
        if self._writing is not None:
            self._writing.cancel()
        self._call.cancel()

    def answer(self, hand: Hand) -> None:
        """Send the answer to a task, once however often it is asked for meanwhile."""
        if hand.id not in self._in_line:
            self._in_line.add(hand.id)
            self._outbox.put_nowait(hand)

    def progress(self, progress: Progress) -> None:
        """Say how far a task is, if that can be said soon."""
        if self._outbox.qsize() < MOST_PROGRESS_IN_LINE:
            self._outbox.put_nowait(FromClient(progress=progress))

    async def frames(self, take: Callable[[FromServer], Awaitable[None]]) -> None:
        """Hand over each frame as it comes, until the server ends the stream."""
        seconds: float | None = FIRST_WORD_SECONDS
        while (data := await self._read(seconds)) is not grpc.aio.EOF:
            seconds = None
            self._summary.bytes_down += len(data) + PREFIX_BYTES
            try:
                frame = FromServer.FromString(data)
            except DecodeError:
                raise MessageError("the server sent a frame that cannot be read") from None
            await take(frame)

    async def _read(self, seconds: float | None) -> Any:  # noqa: ANN401 - bytes, or gRPC's EOF
        try:
            return await asyncio.wait_for(self._call.read(), seconds)
        except TimeoutError:
            raise MessageError("it says nothing") from None

    async def _write_all(self) -> None:
        try:
            while (item := await self._outbox.get()) is not None:
                if isinstance(item, Hand):
                    self._in_line.discard(item.id)
                    await self._write_answer(item)
                else:
                    await self._write(item)
            await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # who reads hears of it too
        except Exception:
            self._call.cancel()
            raise

    async def _write_answer(self, hand: Hand) -> None:
        payload, piece_bytes = hand.payload, self._pace.piece_bytes
        held = hand.held_there
        start = await asyncio.to_thread(place_to_go_on, payload, held) if held and held.bytes else 0
        piece = payload[start : start + piece_bytes]
        answer = Answer(
            task=hand.id,
            reply=hand.reply,
            failure=hand.failure,
            payload_bytes=len(payload),
            offset=start,
            download_seconds=hand.download_seconds,
            piece=piece,
        )
        await self._write(FromClient(answer=answer))
        for place in range(start + len(piece), len(payload), piece_bytes):
            if not hand.is_wanted:
                return
            await self._write(FromClient(piece=payload[place : place + piece_bytes]))
        hand.is_wanted = False  # unless we hear that it was lost

    async def _write(self, frame: FromClient) -> None:
        data = frame.SerializeToString()
        await self._call.write(data)
        self._summary.bytes_up += len(data) + PREFIX_BYTES
        await self._pace.keep(len(data))


def begun(frame: TaskFrame) -> Hand:
    """Return the task that a frame begins, if there is room for it."""
    if frame.offset:
        raise MessageError("a task that goes on from where it never was")
    if frame.payload_bytes > PIECE_BYTES:
        free = shutil.disk_usage(tempfile.gettempdir()).free
        if frame.payload_bytes > free - min(free // 2, KEPT_FREE_BYTES):
            raise SpoolError(f"no room in {tempfile.gettempdir()} for a task of {frame.payload_bytes} bytes")
    return Hand(frame.task, frame.question, Incoming(frame.payload_bytes), time.monotonic())
