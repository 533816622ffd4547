"""Questions to clients and their answers, whatever grid carries them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cached_property

from flwr.app import Message
from flwr.serverapp import Grid

from strategies.flower.prompt_grid import PromptGrid
from strategies.flower.roster import Roster

SHORTEST_POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 1.0
SECONDS_BETWEEN_ROLL_CALLS = 1.0  # for clients that are back by another connection; most exchanges are over by then


class Questions:
    """One message to each of some clients; who answers is known by the message, as where a node is gone Flower does."""

    def __init__(self, messages: Mapping[str, Message]) -> None:
        self.messages = list(messages.values())
        # Messages are large; what stays of each is its metadata, in which it gets an id when it is sent.
        self._asked = [(name, message.metadata) for name, message in messages.items()]

    def client_of(self, reply: Message) -> str:
        """Return the name of the client that was asked for this reply; nothing where nobody was."""
        return self._by_message.get(reply.metadata.reply_to_message_id, "")

    @cached_property
    def _by_message(self) -> dict[str, str]:
        return {asked.message_id: name for name, asked in self._asked}

    def answers(self, grid: Grid, roster: Roster, timeout_seconds: float) -> Iterator[Message]:
        """Send the messages, and yield replies as they come: told by the grid, or polling."""
        messages, self.messages = self.messages, []
        waiting = {one for one in grid.push_messages(messages) if one}
        del messages
        end, wait = time.monotonic() + timeout_seconds, SHORTEST_POLL_SECONDS
        next_roll_call = time.monotonic() + SECONDS_BETWEEN_ROLL_CALLS
        while waiting and (left := end - time.monotonic()) > 0:
            replies = list(grid.pull_messages(waiting))
            arrived = bool(replies)
            while replies:
                waiting.discard(replies[-1].metadata.reply_to_message_id)
                yield replies.pop()
            if time.monotonic() >= next_roll_call:
                self._follow(grid, roster, waiting)
                next_roll_call = time.monotonic() + SECONDS_BETWEEN_ROLL_CALLS
            if arrived:
                wait = SHORTEST_POLL_SECONDS
            elif isinstance(grid, PromptGrid):
                grid.wait_for_reply(left)
            else:
                time.sleep(min(wait, left))
                wait = min(1.3 * wait, LONGEST_POLL_SECONDS)
        if waiting and isinstance(grid, PromptGrid):
            grid.forget(waiting)

    def _follow(self, grid: Grid, roster: Roster, waiting: set[str]) -> None:
        """Ask who is back by a new connection there: the old one is found dead much later, in up to a minute."""
        if isinstance(grid, PromptGrid):
            roster.update(grid)
            for name, asked in self._asked:
                if asked.message_id in waiting and (node := roster.nodes.get(name)) is not None:
                    grid.redirect(asked.message_id, node)
