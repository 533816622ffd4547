"""Who takes part in a run: clients by names of their own, and the nodes behind which they are now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from common.wire import NOTICE, MessageError, pack_notice, unpack_introduction

SECONDS_BETWEEN_NOTICES = 10.0
QUESTION_SECONDS = 120.0  # a client may load its data before it answers

Say = Callable[[str], None]


@runtime_checkable
class PromptGrid(Protocol):
    """What our own grid can do beyond Flower's: tell when a reply may be there, limit and count bytes."""

    def wait_for_reply(self, seconds: float) -> None:
        """Return when some reply may be complete, or after this time."""

    def forget(self, message_ids: set[str]) -> None:
        """Give up waiting for replies to these messages."""

    def limit_replies(self, largest_bytes: int) -> None:
        """Refuse replies with a larger payload."""

    def traffic_bytes(self) -> tuple[int, int]:
        """Return what Flower's messages took so far, down and up."""

    def traffic_bytes_by_node(self) -> dict[int, tuple[int, int]]:
        """Return the same of each node for which it is known."""


class Roster:
    """Who takes part: clients by name, and the nodes behind which they are now."""

    def __init__(self, most_clients: int, say: Say) -> None:
        self.nodes: dict[str, int] = {}
        self._most_clients = most_clients
        self._say = say
        self._asked: dict[str, tuple[int, float]] = {}  # message id -> node, when
        self._known: set[int] = set()
        self._identities: dict[str, str] = {}  # name -> what tells the client from another that was given its name
        self._doubles: dict[int, str] = {}  # node -> the name that it may not have

    def update(self, grid: Grid) -> None:
        """Ask new nodes for their client's name, and drop those that have gone."""
        online = set(grid.get_node_ids())
        for name in [name for name, node in self.nodes.items() if node not in online]:
            self._say(f"{name} has left")
            del self.nodes[name]
            for node in [node for node, wanted in self._doubles.items() if wanted == name]:
                del self._doubles[node]
                self._known.discard(node)  # it is asked again, and may have the name now
        self._give_up_questions(grid)
        new = sorted(online - self._known)
        self._known = online
        questions = [Message(RecordDict(), node, MessageType.QUERY) for node in new]
        sent = zip(grid.push_messages(questions), new, strict=True)
        self._asked |= {one: (node, time.monotonic()) for one, node in sent if one}
        for reply in grid.pull_messages(list(self._asked)) if self._asked else ():
            node, _ = self._asked.pop(reply.metadata.reply_to_message_id)
            if node not in self._doubles:
                self._welcome(node, reply, grid)

    def gather(self, grid: Grid, count: int, least: int = 0, patience_seconds: float = math.inf) -> None:
        """Wait until that many clients are there, or after a while so many at least, and say who is missing."""
        next_notice, end = time.monotonic() + 1.0, time.monotonic() + patience_seconds
        while True:
            self.update(grid)
            if len(self.nodes) >= (count if time.monotonic() < end else least):
                return
            if time.monotonic() >= next_notice:
                next_notice = time.monotonic() + SECONDS_BETWEEN_NOTICES
                self._say(self._missing(count))
            if isinstance(grid, PromptGrid):
                grid.wait_for_reply(0.1)
            else:
                time.sleep(0.5)

    def _welcome(self, node: int, reply: Message, grid: Grid) -> None:
        if reply.has_error():
            self._say(f"a client cannot take part: {reply.error.reason}")
            return
        try:
            introduction = unpack_introduction(reply.content)
        except MessageError as error:
            self._say(f"node {node} does not answer as one of our clients: {error}")
            return
        name, identity = introduction.client, introduction.identity
        if name not in self.nodes and len(self.nodes) >= self._most_clients:
            self._say(f"{name} is left out: all {self._most_clients} clients are here")
            return
        if self.nodes.get(name, node) != node:
            if identity != self._identities[name]:
                self._refuse_double(node, name, grid)
                return
            # It lost its connection and is back before the old one was found dead.
            self._say(f"{name} has joined again, by a new connection; the old one is no longer used")
        self.nodes[name], self._identities[name] = node, identity

    def _refuse_double(self, node: int, name: str, grid: Grid) -> None:
        """Leave out a second client of the same name until the first has left, and tell both operators."""
        self._say(f"{name} is here already; another client that calls itself so is left out until that one has left")
        self._doubles[node] = name
        text = f"another client is called {name} already; choose another --name, or end that one"
        for one in grid.push_messages([Message(pack_notice(text), node, f"{MessageType.QUERY}.{NOTICE}")]):
            self._asked[one] = (node, time.monotonic())

    def _give_up_questions(self, grid: Grid) -> None:
        """Ask again who did not answer for long: the question may have been lost with a broken connection."""
        late = {one for one, (_, then) in self._asked.items() if time.monotonic() - then > QUESTION_SECONDS}
        for one in late:
            self._known.discard(self._asked.pop(one)[0])
        if late and isinstance(grid, PromptGrid):
            grid.forget(late)

    def _missing(self, count: int) -> str:
        here = sorted(self.nodes)
        usual = [f"client-{index}" for index in range(count)]
        absent = [name for name in usual if name not in self.nodes]
        who = f" (missing: {', '.join(absent)})" if set(here) <= set(usual) else ""
        return f"waiting for clients: {len(here)} of {count} are here{who}"
