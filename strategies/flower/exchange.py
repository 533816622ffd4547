"""Messages to nodes and their replies, whatever grid carries them, and the bytes that they took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from flwr.app import Message
from flwr.serverapp import Grid

SHORTEST_WAIT_SECONDS = 0.02
LONGEST_WAIT_SECONDS = 1.0
SECONDS_BETWEEN_LOOKS = 1.0  # after clients that are back by another connection; most exchanges are over by then


@runtime_checkable
class PromptGrid(Protocol):
    """What our own grid can do beyond Flower's: tell when a reply may be there, limit and count bytes."""

    def wait_for_reply(self, seconds: float) -> None:
        """Return when some reply may be complete, or after this time."""

    def forget(self, message_ids: set[str]) -> None:
        """Give up waiting for replies to these messages."""

    def redirect(self, message_id: str, node_id: int) -> None:
        """Let this node answer a message instead of the one that it was sent to."""

    def limit_replies(self, largest_bytes: int) -> None:
        """Refuse replies with a larger payload."""

    def registered_name(self, node_id: int) -> str | None:
        """Return the name that goes with a node's key; None where anybody may join."""

    def traffic_bytes(self) -> tuple[int, int]:
        """Return what Flower's messages took so far, down and up."""

    def traffic_bytes_by_node(self) -> dict[int, tuple[int, int]]:
        """Return the same of each node for which it is known."""


@dataclass(frozen=True)
class MessageBytes:
    """What Flower's messages took: altogether, and of the nodes for which that is known."""

    down: int = 0
    up: int = 0
    by_node: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __sub__(self, before: MessageBytes) -> MessageBytes:
        """Return what came since."""
        by_node = {}
        for node, (down, up) in self.by_node.items():
            down_then, up_then = before.by_node.get(node, (0, 0))
            by_node[node] = (down - down_then, up - up_then)
        return MessageBytes(self.down - before.down, self.up - before.up, by_node)


def send(grid: Grid, messages: Iterable[Message]) -> dict[str, int]:
    """Send messages; return their ids, each with the node that it went to."""
    messages = list(messages)  # Flower's grid goes over them twice
    sent = zip(grid.push_messages(messages), messages, strict=True)
    return {one: message.metadata.dst_node_id for one, message in sent if one}


def replies_to(
    grid: Grid, message_ids: Iterable[str], timeout_seconds: float, look: Callable[[set[str]], None]
) -> Iterator[Message]:
    """Yield replies as they come, told by the grid or polling; now and then call `look` with what is missing."""
    waiting = set(message_ids)
    end, wait = time.monotonic() + timeout_seconds, SHORTEST_WAIT_SECONDS
    next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
    while waiting and (left := end - time.monotonic()) > 0:
        replies = list(grid.pull_messages(waiting))
        arrived = bool(replies)
        while replies:
            waiting.discard(replies[-1].metadata.reply_to_message_id)
            yield replies.pop()
        if time.monotonic() >= next_look:
            look(waiting)
            next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        if arrived:
            wait = SHORTEST_WAIT_SECONDS
        elif isinstance(grid, PromptGrid):
            grid.wait_for_reply(left)
        else:
            time.sleep(min(wait, left))
            wait = min(1.3 * wait, LONGEST_WAIT_SECONDS)
    if waiting and isinstance(grid, PromptGrid):
        grid.forget(waiting)


def traffic_of(grid: Grid) -> MessageBytes:
    """Return what messages took so far, as far as the grid knows."""
    if not isinstance(grid, PromptGrid):
        return MessageBytes()
    return MessageBytes(*grid.traffic_bytes(), grid.traffic_bytes_by_node())
