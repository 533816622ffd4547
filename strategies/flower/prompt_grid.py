"""What a grid may do beyond Flower's, as our own link does; the strategy does without where it cannot."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


@dataclass(frozen=True)
class Carried:
    """What a link carried, all of it counted, and the seconds that it took by phase."""

    down_bytes: int = 0
    up_bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


class PlainGrid(Grid):
    """What every grid of our own does alike, and nobody sees a difference of."""

    _run: Any = SimpleNamespace(run_id=1)

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


class PromptGrid(PlainGrid):
    """What our own grid can do beyond Flower's: tell when a reply is there, know clients, limit and count bytes."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for all replies."""
        waiting = set(self.push_messages(messages))
        end = time.monotonic() + (timeout if timeout is not None else math.inf)
        replies: list[Message] = []
        while waiting and (left := end - time.monotonic()) > 0:
            arrived = list(self.pull_messages(waiting))
            replies += arrived
            waiting -= {one.metadata.reply_to_message_id for one in arrived}
            if waiting and not arrived:
                self.wait_for_reply(left)
        return replies

    @abstractmethod
    def wait_for_reply(self, seconds: float) -> None:
        """Return when some reply is complete, or after this time."""

    @abstractmethod
    def forget(self, message_ids: Iterable[str]) -> None:
        """Wait for these replies no longer, and keep nothing of them."""

    @abstractmethod
    def limit_replies(self, largest_bytes: int) -> None:
        """Refuse replies with a larger payload."""

    @abstractmethod
    def client_name(self, node_id: int) -> str:
        """Return the name that the client behind a node may use."""

    @abstractmethod
    def know(self, identities: Mapping[str, str]) -> None:
        """Let whoever has a client's identity, by its name, take the place of another who came before it."""

    @abstractmethod
    def carried(self, message_id: str) -> Carried:
        """Return what was carried for a message and its reply so far."""

    @abstractmethod
    def carried_beside(self) -> Carried:
        """Return what was carried beside messages since this was last asked."""
