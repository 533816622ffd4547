"""One client's stream, as long as it lasts: tasks go down, answers come up, both in pieces where they are large."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from common.errors import MessageError
from common.messages.flower import CLIENT_CANNOT_NOW, CLIENT_FAILED
from common.messages.messages_pb2 import Answer, Cancel, FromClient, FromServer, Held, Progress, Refused
from common.messages.messages_pb2 import Task as TaskFrame
from common.messages.stream import (
    FAILURES,
    PREFIX_BYTES,
    SMALLEST_PIECE_BYTES,
    Incoming,
    in_thread_if_large,
    place_to_go_on,
)
from common.say import Event
from common.storage.spool import PIECE_BYTES, SpoolError
from server.link.admission import ViolationError
from server.link.desk import PHASES, Desk, Seat, Task, withdrawal_of
from server.link.limits import Limit

MOST_PROGRESS_A_SECOND = 20
LARGEST_PROGRESS_BYTES = 200
MOST_IN_LINE = 200  # that a client leaves unread
MOST_UNASKED = 20  # answers beyond one for each task: to those that a stream before this one brought
STALL_SECONDS = 300.0  # for which a client may leave one frame unread; on a thin link a piece takes minutes
END_SECONDS = 2.0  # in which a client is told why its stream ends
CODES = {failure: code for code, failure in FAILURES.items()}


@dataclass
class Arrival:
    """An answer of which pieces are still to come; of a task that nobody waits for, they are passed over."""

    task: Task | None
    place: int  # where the next piece belongs
    left_bytes: int
    started: float


class LinkStream:
    """Reads frames as they come; writes what is in its outbox, one after the other."""

    def __init__(self, context: grpc.aio.ServicerContext, desk: Desk, held: Held) -> None:
        self._context = context
        self._desk = desk
        self._held = Held(task=held.task, bytes=held.bytes, checksum=held.checksum)  # what the client has of a task
        self._outbox: asyncio.Queue[Task | FromServer | None] = asyncio.Queue()
        self._is_ending = asyncio.Event()
        self._is_stuck = False
        self._is_over = False  # whatever is in line
        self._writing: asyncio.Task[None] | None = None
        self._writing_since = math.inf  # when the frame was begun that gRPC has not taken yet
        self._arrival = Arrival(None, 0, 0, 0.0)
        self._answers_due = MOST_UNASKED
        self._progress_limit = Limit(MOST_PROGRESS_A_SECOND, 1.0)

    def say(self, what: Task | FromServer | None) -> None:
        """Send a task or a frame when all before it is sent; None ends the stream then."""
        self._outbox.put_nowait(what)
        if self._outbox.qsize() > MOST_IN_LINE:
            self._is_stuck = True
            self._is_ending.set()

    def end(self, refused: Refused | None = None) -> None:
        """End the stream: nothing more is read, no task is sent, and what there is to say has a moment to be said."""
        if refused is not None:
            self.say(FromServer(refused=refused))
        self.say(None)
        self._is_ending.set()

    async def talk(self, seat: Seat) -> bool:
        """Read and write until the stream ends; say whether the client took leave."""
        reading = asyncio.create_task(self._read_all(seat))
        writing = self._writing = asyncio.create_task(self._write_all(seat))
        ending = asyncio.create_task(self._is_ending.wait())
        try:
            done: set[asyncio.Task[Any]] = set()
            while not (done or self._is_stuck):
                done, _ = await asyncio.wait(
                    {reading, writing, ending}, timeout=STALL_SECONDS / 5, return_when=asyncio.FIRST_COMPLETED
                )
                self._is_stuck |= time.monotonic() - self._writing_since > STALL_SECONDS
            if self._is_stuck:
                raise ViolationError("it does not read what it is sent")
            if reading.done():
                return reading.result()
            await asyncio.wait({writing}, timeout=END_SECONDS)
            if writing.done():
                writing.result()
            return False
        finally:
            self._is_over = True
            self._is_ending.set()
            if self._writing_since == math.inf:
                writing.cancel()
            reading.cancel()
            ending.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)

    async def settled(self) -> None:
        """Return when gRPC has got rid of the last frame: who does not read can put that off as long as it is there."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write_all(self, seat: Seat) -> None:
        while not self._is_over and (item := await self._outbox.get()) is not None:
            if not isinstance(item, Task):
                await self._write(item)
            elif item.is_open and not self._is_ending.is_set():
                self._answers_due += 1
                await self._write_task(item)
                if seat.doing == "downloading":  # unless it says that it still is
                    seat.begin("training")

    async def _write_task(self, task: Task) -> None:
        payload = task.payload
        start = await asyncio.to_thread(place_to_go_on, payload, self._held) if self._held.task == task.id else 0
        frame = TaskFrame(task=task.id, question=task.question, payload_bytes=len(payload), offset=start)
        if task.incoming is not None:
            frame.held.CopyFrom(await asyncio.to_thread(task.incoming.held, task.id))
        frame.piece = payload[start : start + PIECE_BYTES]
        await self._write(FromServer(task=frame), task)
        for place in range(start + PIECE_BYTES, len(payload), PIECE_BYTES):
            if not task.is_open or self._is_ending.is_set():  # the rest is of no use; the client hears of it by Cancel
                return
            await self._write(FromServer(piece=payload[place : place + PIECE_BYTES]), task)

    async def _write(self, frame: FromServer, task: Task | None = None) -> None:
        data = frame.SerializeToString()
        self._desk.count(task, down=len(data) + PREFIX_BYTES)
        self._writing_since = time.monotonic()
        await self._context.write(data)
        self._writing_since = math.inf

    async def _read_all(self, seat: Seat) -> bool:
        while (data := await self._context.read()) is not grpc.aio.EOF:
            try:
                frame = FromClient.FromString(data)
            except DecodeError:
                raise ViolationError("a frame that cannot be read") from None
            size = len(data) + PREFIX_BYTES
            match frame.WhichOneof("frame"):
                case "answer":
                    await self._answer(seat, frame.answer, size)
                case "piece":
                    await self._piece(seat, frame.piece, size)
                case "progress":
                    self._progress(seat, frame.progress, size)
                case "goodbye":
                    self._desk.count(None, up=size)
                    return True
                case other:
                    raise ViolationError(f"a frame that does not belong here ({other})")
        return False

    async def _answer(self, seat: Seat, answer: Answer, size: int) -> None:
        task = seat.tasks.get(answer.task)
        self._desk.count(task, up=size)
        self._check(answer)
        if answer.payload_bytes > (most := self._desk.largest_reply_bytes):
            why = f"a reply of {answer.payload_bytes} bytes where at most {most} were expected"
            if task is not None:  # a fault of the experiment rather than of the link: it would not help to ask again
                self._desk.close(seat, task, (CLIENT_FAILED, why))
            raise ViolationError(why)
        left = answer.payload_bytes - answer.offset
        self._arrival = Arrival(task, answer.offset, left, time.monotonic())
        if task is None:
            if left > len(answer.piece):
                self.say(FromServer(cancel=Cancel(task=answer.task)))  # it need not send the rest
        elif answer.HasField("failure"):
            code = CODES.get(answer.failure.code, CLIENT_FAILED)
            self._desk.close(seat, task, (code, Event.of(answer.failure.reason)))
        else:
            seat.begin("uploading")
            task.reply = answer.reply
            task.seconds["download"] = answer.download_seconds
            await self._make_room(seat, task, answer)
        await self._add(seat, answer.piece)

    def _check(self, answer: Answer) -> None:
        """Refuse an answer that cannot be one, before anything of it is kept."""
        last = self._arrival
        if last.left_bytes and last.task is not None and last.task.is_open:
            raise ViolationError("an answer before the one before it was complete")
        self._answers_due -= 1
        if self._answers_due < 0:
            raise ViolationError("more answers than it was asked for")
        if len(answer.piece) > answer.payload_bytes - answer.offset:
            raise ViolationError("a piece that is longer than its answer")
        if not (math.isfinite(answer.download_seconds) and answer.download_seconds >= 0):
            raise ViolationError("a time beyond all bounds")

    async def _make_room(self, seat: Seat, task: Task, answer: Answer) -> None:
        """Prepare for an answer's payload: from its start, or from where a broken stream had left it."""
        if answer.offset:
            incoming = task.incoming
            if incoming is None or incoming.size != answer.payload_bytes or incoming.received < answer.offset:
                raise ViolationError("an answer that goes on from where it never was")
            return
        try:
            task.incoming = await in_thread_if_large(answer.payload_bytes, Incoming, answer.payload_bytes)
        except SpoolError as error:
            self._give_up(seat, task, str(error))

    async def _piece(self, seat: Seat, piece: bytes, size: int) -> None:
        self._desk.count(self._arrival.task, up=size)
        if not 0 < len(piece) <= self._arrival.left_bytes:
            raise ViolationError("a piece that nobody has announced")
        if len(piece) < min(SMALLEST_PIECE_BYTES, self._arrival.left_bytes):
            raise ViolationError("pieces that are too small")
        await self._add(seat, piece)

    async def _add(self, seat: Seat, piece: bytes) -> None:
        arrival = self._arrival
        task, place = arrival.task, arrival.place
        arrival.place += len(piece)
        arrival.left_bytes -= len(piece)
        incoming = task.incoming if task is not None and task.is_open else None
        if task is None or incoming is None:
            return
        try:
            await in_thread_if_large(incoming.size, incoming.add, piece, place)
        except SpoolError as error:
            self._give_up(seat, task, str(error))
        except MessageError as error:
            raise ViolationError(str(error)) from None
        if incoming.is_complete:
            task.seconds["upload"] = time.monotonic() - arrival.started
            self._desk.close(seat, task)

    def _give_up(self, seat: Seat, task: Task, why: str) -> None:
        """Take no answer for which there is no room; the round may ask again when there is."""
        self._desk.close(seat, task, (CLIENT_CANNOT_NOW, why))
        self.say(withdrawal_of(task))

    def _progress(self, seat: Seat, progress: Progress, size: int) -> None:
        self._desk.count(seat.tasks.get(progress.task), up=size)
        if size > LARGEST_PROGRESS_BYTES:
            raise ViolationError("a frame of progress that is too long")
        if not self._progress_limit.allows(seat.node):
            raise ViolationError(f"more than {MOST_PROGRESS_A_SECOND} frames of progress per second")
        if progress.task in seat.tasks and (doing := PHASES.get(progress.phase)):
            seat.progress = progress
            seat.begin(doing)
