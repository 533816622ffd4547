"""The Grid of Flower over our own streams: the strategy's side of the desk."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from flwr.app import Error, Message

from common.messages.content import content_of, head_of, payload_of
from common.messages.flower import CLIENT_GONE, begin_run, set_message_id
from common.messages.messages_pb2 import FromServer
from server.link.desk import GONE, Bytes, Desk, Stream, Task, withdrawal_of
from strategies.flower.prompt_grid import Carried, PromptGrid

SECONDS_BETWEEN_LOOKS = 1.0  # for clients that did not come back


class LinkGrid(Desk, PromptGrid):
    """Messages to and from the clients of one run after the other; a client keeps its node while it comes and goes."""

    def __init__(self, in_loop: Callable[[Callable[[], None]], object]) -> None:
        super().__init__()
        begin_run()
        self._in_loop = in_loop
        self._kept: dict[str, Task] = {}  # all that nobody has forgotten yet
        self._task_ids = itertools.count(secrets.randbits(40))  # another server's tasks have other numbers
        self.summary = ""  # what clients are told at the end of the run
        self.counted: Mapping[str, int] = {}  # in how many rounds each was

    def get_node_ids(self) -> list[int]:
        """Return the nodes of clients that are here, or will soon be back."""
        with self._changed:
            self._give_up_the_lost()
            return list(self._seats)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages."""
        with self._changed:
            tasks = [self._task(message) for message in messages]
            offers = [(stream, task) for task in tasks if (stream := self._stream_of(task))]
        self._send(offers)
        return [str(task.id) for task in tasks]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are complete, and an error for every message whose client has gone."""
        wanted = message_ids if isinstance(message_ids, Set) else set(message_ids)  # of a thousand, again and again
        with self._changed:
            self._give_up_the_lost()
            self._has_news = False
            tasks = [self._answered.pop(one) for one in list(self._answered) if one in wanted]
        return [_reply(task) for task in tasks]

    def wait_for_reply(self, seconds: float) -> None:
        """Return when something new is answered, or after this time; in between, look for clients that are lost."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._has_news and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, SECONDS_BETWEEN_LOOKS))
                self._give_up_the_lost()

    def forget(self, message_ids: Iterable[str]) -> None:
        """Wait for these replies no longer, and keep nothing of them."""
        with self._changed:
            tasks = [task for one in message_ids if (task := self._kept.pop(one, None))]
            on_stream = [(stream, task) for task in tasks if task.is_open and (stream := self._stream_of(task))]
            for task in tasks:
                self._drop(task)
        self._send([(stream, withdrawal_of(task)) for stream, task in on_stream])

    def forget_all(self) -> None:
        """Keep nothing of a run that is over."""
        self.forget(list(self._kept))

    def limit_replies(self, largest_bytes: int) -> None:
        """Refuse replies with a larger payload."""
        self.largest_reply_bytes = largest_bytes

    def client_name(self, node_id: int) -> str:
        """Return the name that the client behind a node may use."""
        seat = self._seats.get(node_id)
        return "" if seat is None else seat.name

    def know(self, identities: Mapping[str, str]) -> None:
        """Let whoever has a client's identity, by its name, take the place of another who came before it."""
        self.identities = identities

    def carried(self, message_id: str) -> Carried:
        """Return what streams carried for a message and its reply so far, and how long that took."""
        with self._changed:
            task = self._kept.get(message_id)
            if task is None:
                return Carried()
            task.is_counted = True
            return Carried(task.carried.down, task.carried.up, task.seconds)

    def carried_beside(self) -> Carried:
        """Return what streams carried beside messages since this was last asked."""
        with self._changed:
            beside, self._carried_beside = self._carried_beside, Bytes()
        return Carried(beside.down, beside.up)

    def _task(self, message: Message) -> Task:
        task = Task(next(self._task_ids), message, head_of(message.content), payload_of(message.content))
        set_message_id(message, str(task.id))
        self._kept[str(task.id)] = task
        seat = self._seats.get(message.metadata.dst_node_id)
        if seat is None:
            self.close(None, task, (CLIENT_GONE, GONE))
        else:
            seat.tasks[task.id] = task
            if seat.stream is not None:
                seat.begin("downloading")
        return task

    def _send(self, items: Sequence[tuple[Stream, Task | FromServer]]) -> None:
        def send() -> None:
            for stream, what in items:
                stream.say(what)

        if items:
            self._in_loop(send)

    def _stream_of(self, task: Task) -> Stream | None:
        seat = self._seats.get(task.message.metadata.dst_node_id)
        return None if seat is None else seat.stream

    def _drop(self, task: Task) -> None:
        if not task.is_counted:
            self._carried_beside.add(task.carried.down, task.carried.up)
        task.is_open = False
        self._answered.pop(str(task.id), None)
        seat = self._seats.get(task.message.metadata.dst_node_id)
        if seat is not None and task.id in seat.tasks:  # it is still at work
            del seat.tasks[task.id]
            if seat.stream is not None:
                seat.begin("idle")


def _reply(task: Task) -> Message:
    """Return an answer as Flower has it; what is large of the task goes with it."""
    payload = task.incoming.payload if task.incoming else b""
    task.incoming, task.payload = None, b""
    if task.failure is not None:
        return Message(Error(*task.failure), reply_to=task.message)
    return Message(content_of(task.reply, payload), reply_to=task.message)
