"""One client's stream, as long as it lasts: tasks go down, answers come up, both in pieces where they are large."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError

from common.errors import MessageError
from common.messages.flower import CLIENT_CANNOT_NOW, CLIENT_FAILED, CLIENT_FORGOT
from common.messages.messages_pb2 import Answer, Cancel, Failure, FromClient, FromServer, Held, Progress, Refused
from common.messages.messages_pb2 import Task as TaskFrame
from common.messages.stream import PREFIX_BYTES, Incoming, place_to_go_on
from common.storage.spool import PIECE_BYTES, SpoolError
from server.link.desk import Desk, Seat, Task

SMALLEST_PIECE_BYTES = 1_000  # but for the last one: who sends less keeps the server busy with nothing
MOST_PROGRESS_A_SECOND = 20
MOST_IN_LINE = 200  # that a client leaves unread
CODES = {
    Failure.FAILED: CLIENT_FAILED,
    Failure.CANNOT_NOW: CLIENT_CANNOT_NOW,
    Failure.FORGOT: CLIENT_FORGOT,
}


class ViolationError(Exception):
    """A client does not keep to the protocol."""


@dataclass
class Arrival:
    """An answer of which pieces are still to come; of a task that nobody waits for, they are passed over."""

    task: Task | None
    left_bytes: int
    started: float


class LinkStream:
    """Reads frames as they come; writes what is in its outbox, one after the other."""

    def __init__(self, context: grpc.aio.ServicerContext, desk: Desk, held: Held) -> None:
        self._context = context
        self._desk = desk
        self._held = held  # what the client has of a task
        self._outbox: asyncio.Queue[Task | FromServer | None] = asyncio.Queue()
        self._is_stuck = asyncio.Event()
        self._arrival = Arrival(None, 0, 0.0)
        self._progress_frames = 0
        self._progress_second = 0

    # What the server has to say.

    def offer(self, task: Task) -> None:
        """Send a task when all before it is sent."""
        self._put(task)

    def withdraw(self, task: Task) -> None:
        """Say that nobody waits for the answer any more."""
        self.say(FromServer(cancel=Cancel(task=task.id)))

    def say(self, frame: FromServer) -> None:
        """Send a frame."""
        self._put(frame)

    def end(self, refused: Refused | None = None) -> None:
        """End the stream when all before is sent."""
        if refused is not None:
            self.say(FromServer(refused=refused))
        self._put(None)

    def _put(self, item: Task | FromServer | None) -> None:
        self._outbox.put_nowait(item)
        if self._outbox.qsize() > MOST_IN_LINE:
            self._is_stuck.set()

    async def talk(self, seat: Seat) -> bool:
        """Read and write until the stream ends; say whether the client took leave."""
        reading = asyncio.create_task(self._read_all(seat))
        others = {asyncio.create_task(self._write_all()), asyncio.create_task(self._is_stuck.wait())}
        try:
            await asyncio.wait({reading, *others}, return_when=asyncio.FIRST_COMPLETED)
            if self._is_stuck.is_set():
                raise ViolationError("it does not read what it is sent")
            return reading.done() and reading.result()
        finally:
            for one in (reading, *others):
                one.cancel()

    async def _write_all(self) -> None:
        while (item := await self._outbox.get()) is not None:
            if not isinstance(item, Task):
                await self._write(item)
            elif item.is_open:
                await self._write_task(item)

    async def _write_task(self, task: Task) -> None:
        payload = task.payload
        start = await asyncio.to_thread(place_to_go_on, payload, self._held) if self._held.task == task.id else 0
        frame = TaskFrame(task=task.id, question=task.question, payload_bytes=len(payload), offset=start)
        if task.incoming is not None:
            frame.held.CopyFrom(await asyncio.to_thread(task.incoming.held, task.id))
        frame.piece = payload[start : start + PIECE_BYTES]
        await self._write(FromServer(task=frame), task)
        for place in range(start + PIECE_BYTES, len(payload), PIECE_BYTES):
            if not task.is_open:  # the rest is of no use; the client hears of it by Cancel
                return
            await self._write(FromServer(piece=payload[place : place + PIECE_BYTES]), task)

    async def _write(self, frame: FromServer, task: Task | None = None) -> None:
        data = frame.SerializeToString()
        self._desk.count(task, down=len(data) + PREFIX_BYTES)
        await self._context.write(data)

    # What the client has to say.

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
        last = self._arrival
        if last.left_bytes and last.task is not None and last.task.is_open:
            raise ViolationError("an answer before the one before it was complete")
        task = seat.tasks.get(answer.task)
        self._desk.count(task, up=size)
        left = answer.payload_bytes - answer.offset
        if answer.payload_bytes > self._desk.largest_reply_bytes:
            expected = self._desk.largest_reply_bytes
            self._refuse(seat, task, f"a reply of {answer.payload_bytes} bytes where at most {expected} were expected")
        if not 0 <= len(answer.piece) <= left:
            self._refuse(seat, task, "a piece that is longer than its answer")
        self._arrival = Arrival(task, left, time.monotonic())
        if task is None:
            if left > len(answer.piece):
                self.say(FromServer(cancel=Cancel(task=answer.task)))
        elif answer.HasField("failure"):
            code = CODES.get(answer.failure.code, CLIENT_FAILED)
            self._desk.close(seat, task, (code, answer.failure.reason))
        else:
            task.reply = answer.reply
            task.seconds["download"] = answer.download_seconds
            await self._make_room(seat, task, answer)
        await self._add(seat, answer.piece)

    async def _make_room(self, seat: Seat, task: Task, answer: Answer) -> None:
        """Prepare for an answer's payload: from its start, or from where a broken stream had left it."""
        if answer.offset:
            incoming = task.incoming
            if incoming is None or (incoming.received, incoming.size) != (answer.offset, answer.payload_bytes):
                self._refuse(seat, task, "an answer that goes on from where it never was")
            return
        try:
            small = answer.payload_bytes <= PIECE_BYTES
            task.incoming = (
                Incoming(answer.payload_bytes) if small else await asyncio.to_thread(Incoming, answer.payload_bytes)
            )
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
        arrival.left_bytes -= len(piece)
        task = arrival.task
        if task is None or not task.is_open or task.incoming is None:
            return
        try:
            if task.incoming.size <= PIECE_BYTES:
                task.incoming.add(piece)
            else:
                await asyncio.to_thread(task.incoming.add, piece)
        except SpoolError as error:
            self._give_up(seat, task, str(error))
        except MessageError as error:
            self._refuse(seat, task, str(error))
        if task.incoming.is_complete:
            task.seconds["upload"] = time.monotonic() - arrival.started
            self._desk.close(seat, task)

    def _give_up(self, seat: Seat, task: Task, why: str) -> None:
        """Take no answer for which there is no room; the round may ask again when there is."""
        self._desk.close(seat, task, (CLIENT_CANNOT_NOW, why))
        self.withdraw(task)

    def _refuse(self, seat: Seat, task: Task | None, why: str) -> None:
        if task is not None:
            self._desk.close(seat, task, (CLIENT_FAILED, why))
        raise ViolationError(why)

    def _progress(self, seat: Seat, progress: Progress, size: int) -> None:
        self._desk.count(seat.tasks.get(progress.task), up=size)
        second = int(time.monotonic())
        self._progress_frames = self._progress_frames + 1 if second == self._progress_second else 1
        self._progress_second = second
        if self._progress_frames > MOST_PROGRESS_A_SECOND:
            raise ViolationError(f"more than {MOST_PROGRESS_A_SECOND} frames of progress per second")
        if progress.task in seat.tasks:
            seat.progress = progress
