"""Questions to clients and their answers, whatever grid carries them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cached_property

from flwr.app import Message
from flwr.serverapp import Grid

from strategies.flower.prompt_grid import Carried, PromptGrid

SHORTEST_POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 1.0


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

    def answers(self, grid: Grid, timeout_seconds: float) -> Iterator[Message]:
        """Send the messages, and yield replies as they come: told by the grid, or polling."""
        messages, self.messages = self.messages, []
        waiting = {one for one in grid.push_messages(messages) if one}
        del messages
        end, wait = time.monotonic() + timeout_seconds, SHORTEST_POLL_SECONDS
        while waiting and (left := end - time.monotonic()) > 0:
            replies = list(grid.pull_messages(waiting))
            if replies:
                wait = SHORTEST_POLL_SECONDS
            elif isinstance(grid, PromptGrid):
                grid.wait_for_reply(left)
            else:
                time.sleep(min(wait, left))
                wait = min(1.3 * wait, LONGEST_POLL_SECONDS)
            while replies:
                waiting.discard(replies[-1].metadata.reply_to_message_id)
                yield replies.pop()

    def close(self, grid: Grid) -> dict[str, Carried]:
        """Wait no more for who has not answered; return what was carried for each client, where the grid knows."""
        asked, self._asked = self._asked, []
        if not isinstance(grid, PromptGrid):
            return {}
        sent = {name: metadata.message_id for name, metadata in asked if metadata.message_id}
        carried = {name: grid.carried(message_id) for name, message_id in sent.items()}
        grid.forget(sent.values())
        return carried
