"""Who is here, what each was asked, and what was answered: where the streams and the strategy's thread meet."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import Message

from common.messages.flower import CLIENT_GONE
from common.messages.messages_pb2 import Cancel, FromServer, Progress
from common.messages.stream import Incoming
from common.storage.spool import Spool
from server.runs.now import ClientNow, Doing

RETURN_SECONDS = 30.0  # for which a client whose stream broke is not given up: most are back at once
LARGEST_REPLY_BYTES = 16 << 20  # unless a strategy knows better
GONE = "the client has left"
MOST_DEPARTURES = 4_096  # that are remembered
PHASES: Mapping[int, Doing] = {Progress.DOWNLOADING: "downloading", Progress.TRAINING: "training"}


@dataclass
class Bytes:
    """What streams carried."""

    down: int = 0
    up: int = 0

    def add(self, down: int, up: int) -> None:
        """Count more."""
        self.down += down
        self.up += up


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
    carried: Bytes = field(default_factory=Bytes)
    seconds: dict[str, float] = field(default_factory=dict)  # that the link took, by phase


def withdrawal_of(task: Task) -> FromServer:
    """Return the frame that says that nobody waits for the answer any more."""
    return FromServer(cancel=Cancel(task=task.id))


class Stream(Protocol):
    """A client's stream, as far as it is known here; called in the streams' own loop."""

    def say(self, what: Task | FromServer) -> None:
        """Send a task or a frame when all before it is sent."""


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
    device: str = ""  # as it calls what it computes on
    doing: Doing = "idle"
    since: float = field(default_factory=time.time)

    def begin(self, doing: Doing) -> None:
        """Note what the client does from now on."""
        if self.doing != doing:
            self.doing, self.since = doing, time.time()

    def now(self) -> ClientNow:
        """Return what the client does, and how far it is with it."""
        done, of = self._how_far()
        return ClientNow(self.doing, self.since, done, of, self.device)

    def _how_far(self) -> tuple[int, int]:
        task = next(reversed(self.tasks.values()), None)
        if task is not None and self.doing == "uploading" and task.incoming is not None:
            return task.incoming.received, task.incoming.size
        said = self.progress
        if task is not None and said is not None and said.task == task.id and PHASES.get(said.phase) == self.doing:
            return said.done, said.of
        return 0, 0


class Desk:
    """The streams' side; the strategy's is grid.py."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seats: dict[int, Seat] = {}  # by node
        self._names: dict[str, Seat] = {}
        self._lost: set[Seat] = set()  # of whom no stream is left
        self._departures: dict[str, float] = {}  # when clients that are gone have left, the newest last
        self._answered: dict[str, Task] = {}  # that nobody has taken yet
        self._has_news = False  # something was answered since anybody last took answers
        self._carried_beside = Bytes()
        self._node_ids = itertools.count(1)
        self.largest_reply_bytes = LARGEST_REPLY_BYTES
        self.identities: Mapping[str, str] = {}  # by name: of those whom a run knows

    def seat_of(self, name: str) -> Seat | None:
        """Return the seat of a client that is here, or will soon be back."""
        with self._changed:
            self._give_up_the_lost()
            return self._names.get(name)

    def seats(self) -> int:
        """Return how many clients are here, or will soon be back."""
        return len(self._seats)

    def clients_now(self) -> dict[str, ClientNow]:
        """Return what the clients do in this moment, those that have left last."""
        with self._changed:
            here = {name: seat.now() for name, seat in self._names.items()}
            return here | {name: ClientNow("away", since) for name, since in self._departures.items()}

    def sit_down(self, name: str, identity: str, stream: Stream, device: str = "") -> tuple[Seat, Stream | None]:
        """Give a client its seat; return it with the stream that it had before."""
        with self._changed:
            seat = self.seat_of(name)  # under the same lock, as it may be given up at any moment
            if seat is None:
                seat = Seat(next(self._node_ids), name, identity)
                self._seats[seat.node] = self._names[name] = seat
            self._lost.discard(seat)
            self._departures.pop(name, None)
            before, seat.stream, seat.identity, seat.device = seat.stream, stream, identity, device
            seat.begin("downloading" if seat.tasks else "idle")
            return seat, before

    def lose(self, seat: Seat, stream: Stream) -> None:
        """Note that a stream broke; the client may be back."""
        with self._changed:
            if seat.stream is stream:
                seat.stream, seat.lost = None, time.monotonic()
                seat.begin("away")
                self._lost.add(seat)

    def give_up(self, seat: Seat, stream: Stream | None, why: str = GONE) -> None:
        """Note that a client is gone for now, unless it has another stream: nobody waits for its answers."""
        with self._changed:
            if seat.node in self._seats and seat.stream is stream:
                self._give_up(seat, why)

    def count(self, task: Task | None, *, down: int = 0, up: int = 0) -> None:
        """Count what a stream carried for a task, or for none that is open."""
        with self._changed:
            (task.carried if task is not None and task.is_open else self._carried_beside).add(down, up)

    def close(self, seat: Seat | None, task: Task, failure: tuple[int, str] | None = None) -> None:
        """Note that a task is answered, or why it will not be."""
        with self._changed:
            if task.is_open:
                task.is_open, task.failure = False, failure
                if seat is not None:
                    seat.tasks.pop(task.id, None)
                    seat.begin("answered")
                self._answered[str(task.id)] = task
                self._has_news = True
                self._changed.notify_all()

    def _give_up_the_lost(self) -> None:
        end = time.monotonic() - RETURN_SECONDS
        for seat in [one for one in self._lost if one.lost < end]:
            self._give_up(seat, "its stream broke, and it did not come back")

    def _give_up(self, seat: Seat, why: str) -> None:
        del self._seats[seat.node], self._names[seat.name]
        self._lost.discard(seat)
        seat.stream = None  # which may last for a moment: it is nobody's that could be lost once more
        self._departures[seat.name] = seat.since if seat.doing == "away" else time.time()
        if len(self._departures) > MOST_DEPARTURES:
            del self._departures[next(iter(self._departures))]
        for task in list(seat.tasks.values()):
            self.close(seat, task, (CLIENT_GONE, why))
