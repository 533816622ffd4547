"""Tasks on their way to clients and answers on their way back: where the strategy's thread and the streams meet."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import Message

from common.messages.content import head_of, payload_of
from common.messages.flower import CLIENT_GONE, set_message_id
from common.messages.messages_pb2 import Progress
from common.messages.stream import Incoming
from common.storage.spool import Spool

RETURN_SECONDS = 30.0  # for which a client whose stream broke is not given up: most are back at once
LARGEST_REPLY_BYTES = 16 << 20  # unless a strategy knows better
GONE = "the client has left"


@dataclass(eq=False)
class Task:
    """One message to one client, until its answer is taken."""

    id: int
    message: Message
    question: bytes
    payload: bytes | Spool
    is_open: bool = True  # somebody waits for the answer
    is_counted: bool = False  # somebody has asked what it took
    incoming: Incoming | None = None  # the answer's payload, as far as it is here
    reply: bytes = b""
    failure: tuple[int, str] | None = None  # code and reason, where there is no reply
    bytes_down: int = 0  # that streams carried for it
    bytes_up: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # that the link took, by phase


class Stream(Protocol):
    """A client's stream, as far as the desk knows it; called in the streams' own loop."""

    def offer(self, task: Task) -> None:
        """Send a task."""

    def withdraw(self, task: Task) -> None:
        """Say that nobody waits for the answer any more."""


@dataclass(eq=False)
class Seat:
    """A client that is here, or will soon be back."""

    node: int  # as Flower calls it
    name: str
    identity: str
    stream: Stream | None = None
    lost: float = 0.0  # when its last stream broke
    tasks: dict[int, Task] = field(default_factory=dict)  # that are open
    progress: Progress | None = None  # the last that it said


class Desk:
    """Who is here, what each was asked, and what was answered."""

    def __init__(self, in_loop: Callable[[Callable[[], None]], object]) -> None:
        self._in_loop = in_loop
        self._changed = threading.Condition()
        self._seats: dict[int, Seat] = {}  # by node
        self._names: dict[str, Seat] = {}
        self._lost: set[Seat] = set()  # of whom no stream is left
        self._answered: dict[str, Task] = {}
        self._has_news = False  # something was answered since anybody last took answers
        self._spent: dict[str, Task] = {}  # all that nobody has forgotten yet
        self._other_bytes = (0, 0)
        self._task_ids = itertools.count(secrets.randbits(40))  # another server's tasks have other numbers
        self._node_ids = itertools.count(1)
        self.largest_reply_bytes = LARGEST_REPLY_BYTES
        self.identities: Mapping[str, str] = {}  # by name: of those whom a run knows

    # The strategy's side.

    def nodes(self) -> list[int]:
        """Return the nodes of who is here."""
        with self._changed:
            self._give_up_the_lost()
            return list(self._seats)

    def name_of(self, node: int) -> str:
        """Return who is behind a node; nothing where nobody is."""
        with self._changed:
            seat = self._seats.get(node)
            return "" if seat is None else seat.name

    def put(self, messages: Iterable[Message]) -> list[str]:
        """Hand out messages; return their ids."""
        with self._changed:
            tasks = [self._task(message) for message in messages]
            on_stream = [(seat.stream, task) for seat, task in tasks if seat is not None and seat.stream is not None]

        def offer() -> None:
            for stream, task in on_stream:
                stream.offer(task)

        if on_stream:
            self._in_loop(offer)
        return [str(task.id) for _, task in tasks]

    def take(self, message_ids: Iterable[str]) -> list[Task]:
        """Return the tasks among these that are answered, or whose client is gone."""
        with self._changed:
            self._give_up_the_lost()
            self._has_news = False
            wanted = set(message_ids)
            return [self._answered.pop(one) for one in list(self._answered) if one in wanted]

    def wait(self, seconds: float) -> None:
        """Return when something new is answered, or after this time; in between, look for clients that are lost."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._has_news and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, RETURN_SECONDS / 10))
                self._give_up_the_lost()

    def forget(self, message_ids: Iterable[str]) -> None:
        """Wait for these no longer, and keep nothing of them."""
        with self._changed:
            withdrawn = [self._forgotten(one) for one in message_ids]
        on_stream = [one for one in withdrawn if one is not None]

        def withdraw() -> None:
            for stream, task in on_stream:
                stream.withdraw(task)

        if on_stream:
            self._in_loop(withdraw)

    def _forgotten(self, message_id: str) -> tuple[Stream, Task] | None:
        """Drop a task; return it with the stream on which it was still waited for."""
        task = self._spent.pop(message_id, None)
        if task is None:
            return None
        self._answered.pop(message_id, None)
        if not task.is_counted:
            self._add_other_bytes(task.bytes_down, task.bytes_up)
        seat = self._seats.get(task.message.metadata.dst_node_id)
        was_open, task.is_open = task.is_open, False
        if not was_open or seat is None:
            return None
        seat.tasks.pop(task.id, None)
        return None if seat.stream is None else (seat.stream, task)

    def forget_all(self) -> None:
        """Keep nothing of a run that is over."""
        with self._changed:
            everything = list(self._spent)
        self.forget(everything)

    def spent_on(self, message_id: str) -> Task | None:
        """Return a task that nobody has forgotten yet, answered or not, with what it took; the caller counts that."""
        with self._changed:
            task = self._spent.get(message_id)
            if task is not None:
                task.is_counted = True
            return task

    def take_other_bytes(self) -> tuple[int, int]:
        """Return what streams carried beside tasks since this was last asked: down, up."""
        with self._changed:
            other, self._other_bytes = self._other_bytes, (0, 0)
            return other

    # The streams' side.

    def seat_of(self, name: str) -> Seat | None:
        """Return the seat of a client that is here, or will soon be back."""
        with self._changed:
            self._give_up_the_lost()
            return self._names.get(name)

    def seats(self) -> int:
        """Return how many clients are here, or will soon be back."""
        with self._changed:
            return len(self._seats)

    def sit_down(self, name: str, identity: str, stream: Stream) -> tuple[Seat, Stream | None]:
        """Give a client its seat; return it with the stream that it had before."""
        with self._changed:
            seat = self.seat_of(name)  # under the same lock, as it may be given up at any moment
            if seat is None:
                seat = Seat(next(self._node_ids), name, identity)
                self._seats[seat.node] = self._names[name] = seat
            self._lost.discard(seat)
            before, seat.stream, seat.identity = seat.stream, stream, identity
            return seat, before

    def lose(self, seat: Seat, stream: Stream) -> None:
        """Note that a stream broke; the client may be back."""
        with self._changed:
            if seat.stream is stream:
                seat.stream, seat.lost = None, time.monotonic()
                self._lost.add(seat)

    def give_up(self, seat: Seat, stream: Stream | None, why: str = GONE) -> None:
        """Note that a client is gone for now, unless it has another stream: nobody waits for its answers."""
        with self._changed:
            if seat.node in self._seats and seat.stream is stream:
                self._give_up(seat, why)

    def count(self, task: Task | None, *, down: int = 0, up: int = 0) -> None:
        """Count what a stream carried for a task, or for none that is open."""
        with self._changed:
            if task is None or not task.is_open:
                self._add_other_bytes(down, up)
            else:
                task.bytes_down += down
                task.bytes_up += up

    def close(self, seat: Seat, task: Task, failure: tuple[int, str] | None = None) -> None:
        """Note that a task is answered, or why it will not be."""
        with self._changed:
            if task.is_open:
                self._close(seat, task, failure)

    def _close(self, seat: Seat, task: Task, failure: tuple[int, str] | None) -> None:
        task.is_open, task.failure = False, failure
        seat.tasks.pop(task.id, None)
        self._note_answered(task)

    def _note_answered(self, task: Task) -> None:
        self._answered[str(task.id)] = task
        self._has_news = True
        self._changed.notify_all()

    def _add_other_bytes(self, down: int, up: int) -> None:
        self._other_bytes = (self._other_bytes[0] + down, self._other_bytes[1] + up)

    def _task(self, message: Message) -> tuple[Seat | None, Task]:
        task = Task(next(self._task_ids), message, head_of(message.content), payload_of(message.content))
        set_message_id(message, str(task.id))
        self._spent[str(task.id)] = task
        seat = self._seats.get(message.metadata.dst_node_id)
        if seat is None:
            task.is_open, task.failure = False, (CLIENT_GONE, GONE)
            self._note_answered(task)
        else:
            seat.tasks[task.id] = task
        return seat, task

    def _give_up_the_lost(self) -> None:
        end = time.monotonic() - RETURN_SECONDS
        for seat in [one for one in self._lost if one.lost < end]:
            self._give_up(seat, "its stream broke, and it did not come back")

    def _give_up(self, seat: Seat, why: str) -> None:
        del self._seats[seat.node], self._names[seat.name]
        self._lost.discard(seat)
        seat.stream = None  # which may last for a moment: it is nobody's that could be lost once more
        for task in list(seat.tasks.values()):
            self._close(seat, task, (CLIENT_GONE, why))
