"""The Grid of Flower over our own streams."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message, RecordDict

from common.messages.content import arrays_of, content_of
from common.messages.flower import begin_run
from server.link.desk import Desk, Task
from strategies.flower.prompt_grid import Carried, PromptGrid


class LinkGrid(PromptGrid):
    """Messages to and from the clients of one run; a client keeps its node while it comes and goes."""

    def __init__(self, desk: Desk) -> None:
        begin_run()
        self._desk = desk
        self._run: Any = SimpleNamespace(run_id=1)
        self.summary = "the run was stopped"  # what clients are told at its end

    # What Flower asks of a grid.

    def set_run(self, run: Any) -> None:  # noqa: ANN401 - a type of Flower's that is not public
        """Change the run."""
        self._run = run

    @property
    def run(self) -> Any:  # noqa: ANN401
        """Return the run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the nodes of clients that are here, or will soon be back."""
        return self._desk.nodes()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages."""
        return self._desk.put(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are complete, and an error for every message whose client has gone."""
        return [_reply(task) for task in self._desk.take(message_ids)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for all replies."""
        waiting = set(self.push_messages(messages))
        end = time.monotonic() + (timeout if timeout is not None else math.inf)
        replies: list[Message] = []
        while waiting and (left := end - time.monotonic()) > 0:
            arrived = self.pull_messages(waiting)
            replies += arrived
            waiting -= {one.metadata.reply_to_message_id for one in arrived}
            if waiting and not arrived:
                self.wait_for_reply(left)
        return replies

    # What ours can do beyond that: strategies/flower/prompt_grid.py.

    def wait_for_reply(self, seconds: float) -> None:
        """Return when some reply is complete, or after this time."""
        self._desk.wait(seconds)

    def forget(self, message_ids: Iterable[str]) -> None:
        """Wait for these replies no longer, and keep nothing of them."""
        self._desk.forget(message_ids)

    def limit_replies(self, largest_bytes: int) -> None:
        """Refuse replies with a larger payload."""
        self._desk.largest_reply_bytes = largest_bytes

    def client_name(self, node_id: int) -> str:
        """Return the name that the client behind a node may use."""
        return self._desk.name_of(node_id)

    def know(self, identities: Mapping[str, str]) -> None:
        """Let whoever has a client's identity, by its name, take the place of another who came before it."""
        self._desk.identities = identities

    def carried(self, message_id: str) -> Carried:
        """Return what streams carried for a message and its reply so far, and how long that took."""
        task = self._desk.spent_on(message_id)
        return Carried() if task is None else Carried(task.bytes_down, task.bytes_up, task.seconds)

    def carried_beside(self) -> Carried:
        """Return what streams carried beside messages since this was last asked."""
        return Carried(*self._desk.take_other_bytes())


def _reply(task: Task) -> Message:
    """Return an answer as Flower has it; what is large of the task goes with it."""
    payload = task.incoming.payload if task.incoming else b""
    task.incoming, task.payload = None, b""
    if task.failure is not None:
        return Message(Error(*task.failure), reply_to=task.message)
    return Message(content_of(task.reply, arrays_of(payload) if payload else None), reply_to=task.message)
