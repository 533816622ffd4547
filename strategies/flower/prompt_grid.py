"""What a grid may do beyond Flower's, as our own link does; the strategy does without where it cannot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from flwr.serverapp import Grid


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


def traffic_of(grid: Grid) -> MessageBytes:
    """Return what messages took so far, as far as the grid knows."""
    if not isinstance(grid, PromptGrid):
        return MessageBytes()
    return MessageBytes(*grid.traffic_bytes(), grid.traffic_bytes_by_node())
