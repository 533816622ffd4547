"""Who takes part in a run: clients by names of their own, and the nodes behind which they are now."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from common.errors import MessageError
from common.messages.messages import (
    Introduction,
    message_to,
    pack_introduction_question,
    pack_notice,
    unpack_introduction,
)
from common.rounds.records import MOST_NAMES
from common.say import Event, Say, one_line
from strategies.flower.prompt_grid import PromptGrid

SECONDS_BETWEEN_NOTICES = 10.0
QUESTION_SECONDS = 120.0  # a client may load its data before it answers
SECONDS_BETWEEN_SECOND_LOOKS = 10.0  # after who was left out
GATHERING_SECONDS = 60.0  # when a run goes on; a client that lost the server tries again in less
LONGEST_REASON = 300  # characters of what a client says of itself


def short(text: str | None) -> str:
    """Return why a client cannot do something, as far as anybody will read it."""
    return one_line(text or "no reason given", LONGEST_REASON)


class Roster:
    """Who takes part: clients by name, and the nodes behind which they are now."""

    def __init__(
        self,
        most_clients: int,
        say: Say,
        identities: Mapping[str, str] | None = None,
        put_out: Mapping[str, str] | None = None,
        *,
        frozen: str = "",
    ) -> None:
        self.nodes: dict[str, int] = {}
        self.identities = dict(identities or {})  # name -> what tells the client from another that was given its name
        self._awaited = set(self.identities)  # who was there before the server was started again, and has not come yet
        self._awaited_until = time.monotonic() + GATHERING_SECONDS
        self._most_clients = most_clients
        self._say = say
        self._frozen = frozen  # digest of the part of the model that does not travel
        self._asked: dict[str, tuple[int, float]] = {}  # message id -> node, when
        self._known: set[int] = set()
        self._left_out: dict[int, str] = {}  # node -> why it does not take part for now
        self.put_out = dict(put_out or {})  # name -> why it may not take part in this run any more
        self._next_look = 0.0
        self.gathering = ""  # how many are here, while the run waits for more

    def update(self, grid: Grid) -> None:
        """Ask new nodes for their client's name, now and then those that were left out too, and drop who has gone."""
        if isinstance(grid, PromptGrid):
            grid.know(self.identities)
        online = set(grid.get_node_ids())
        for name in [name for name, node in self.nodes.items() if node not in online]:
            self._say(Event(f"{name} has left", kind="left", client=name))
            del self.nodes[name]
            self._next_look = 0.0  # there is a place for another
        self._left_out = {node: why for node, why in self._left_out.items() if node in online}
        self._give_up_questions(grid)
        new = online - self._known
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + SECONDS_BETWEEN_SECOND_LOOKS
            new |= self._left_out.keys() - {node for node, _ in self._asked.values()}
        self._known = online
        question = pack_introduction_question()
        self._ask(grid, {node: message_to(node, "introduce", question) for node in sorted(new)})
        self._hear(grid)

    def _ask(self, grid: Grid, questions: Mapping[int, Message]) -> None:
        sent = zip(grid.push_messages(questions.values()), questions, strict=True) if questions else ()
        self._asked |= {one: (node, time.monotonic()) for one, node in sent if one}

    def _hear(self, grid: Grid) -> None:
        for reply in grid.pull_messages(list(self._asked)) if self._asked else ():
            answered = reply.metadata.reply_to_message_id
            node, _ = self._asked.pop(answered)
            if isinstance(grid, PromptGrid):
                grid.forget([answered])
            if reply.metadata.message_type == "query":
                self._welcome(node, reply, grid)

    def gather(self, grid: Grid, count: int, least: int = 0, patience_seconds: float = math.inf) -> None:
        """Wait until that many clients are there, or after a while so many at least, and say who is missing."""
        next_notice, end, said = time.monotonic() + 1.0, time.monotonic() + patience_seconds, ""
        while True:
            self.update(grid)
            if len(self.nodes) >= (count if time.monotonic() < end else least):
                self.gathering = ""
                return
            self.gathering = self._missing(count)
            if time.monotonic() >= next_notice and said != self.gathering:
                next_notice, said = time.monotonic() + SECONDS_BETWEEN_NOTICES, self.gathering
                self._say(Event(said, kind="waiting"))
            if isinstance(grid, PromptGrid):
                grid.wait_for_reply(0.1)
            else:
                time.sleep(0.5)

    def exclude(self, name: str, why: str, grid: Grid) -> None:
        """Let a client take no part any more, whenever it comes, and tell it so."""
        self.put_out[name] = why
        self._say(Event(f"{name} is put out: it {why}", kind="put out", client=name))
        if name in self.nodes:  # else it has left meanwhile, and hears of it when it comes back
            self._turn_away(self.nodes.pop(name), name, grid)
        self._next_look = 0.0  # there is a place for another

    def _turn_away(self, node: int, name: str, grid: Grid) -> None:
        notice = f"the server has put this client out: it {self.put_out[name]}"
        self._leave_out(node, f"{name} takes no part any more", grid, notice)

    def _welcome(self, node: int, reply: Message, grid: Grid) -> None:
        expected = _name_of(node, grid)
        who = expected or f"the client behind node {node}"
        if reply.has_error():
            self._leave_out(node, f"{who} cannot take part: {short(reply.error.reason)}", grid)
            return
        try:
            introduction = unpack_introduction(reply.content)
        except MessageError as error:
            self._leave_out(node, f"{who} does not answer as one of our clients: {error}", grid)
            return
        if isinstance(grid, PromptGrid) and introduction.client != expected:
            called = f"calls itself {introduction.client} in a reply"
            self._leave_out(node, f"{expected or 'a client that has gone'} {called}", grid)
        else:
            self._receive(node, introduction, grid)

    def _receive(self, node: int, introduction: Introduction, grid: Grid) -> None:
        name, identity = introduction.client, introduction.identity
        if name in self.put_out:
            self._turn_away(node, name, grid)
        elif introduction.frozen != self._frozen:
            what = "the part of the model that does not travel is not the server's"
            remedy = "install the same pretrained weights, and the same versions of torch and of what makes the model"
            self._leave_out(node, f"{name} is left out: there {what}", grid, f"here {what}: {remedy}")
        elif name not in self.nodes and len(self.nodes) >= self._most_clients:
            self._leave_out(node, f"{name} is left out: all {self._most_clients} clients are here", grid)
        elif self._is_anothers(name, identity):
            who = f"the client that this run knows as {name} has another state folder (--state)"
            seconds = f"{GATHERING_SECONDS:.0f} s after the server's start"
            why = f"{who} than the one that came; this one is left out until {seconds}"
            notice = f"{who}; if that is lost, wait: {seconds} this one may take its place, and starts afresh"
            self._leave_out(node, why, grid, notice)
        elif self.nodes.get(name, node) != node and identity != self.identities.get(name):
            why = f"{name} is here already; another client that calls itself so is left out until that one has left"
            notice = f"another client is called {name} already; choose another --name, or end that one"
            self._leave_out(node, why, grid, notice)
        else:
            self._admit(node, name, identity)

    def _is_anothers(self, name: str, identity: str) -> bool:
        """Say whether a name is that of another, who was here before the server was started again and may be back."""
        awaited = name in self._awaited and time.monotonic() < self._awaited_until
        return awaited and identity != self.identities[name]

    def _admit(self, node: int, name: str, identity: str) -> None:
        if self.nodes.get(name) != node:
            self._say(Event(f"{name} has joined", kind="joined", client=name))
        self.nodes[name], self.identities[name] = node, identity
        self._awaited.discard(name)
        self._left_out.pop(node, None)

    def release(self, name: str) -> None:
        """Let a name be anybody's, as nothing is counted on any more; whoever has it now is asked again who it is."""
        self.identities.pop(name, None)
        self._awaited.discard(name)
        self._known.discard(self.nodes.get(name, 0))

    def _leave_out(self, node: int, why: str, grid: Grid, notice: str = "") -> None:
        """Let a node wait, and tell the operators of both sides, once."""
        if self._left_out.get(node) != why:
            self._say(Event(why, kind="left out", client=_name_of(node, grid)))
            if notice:
                self._ask(grid, {node: message_to(node, "notice", pack_notice(notice))})
        self._left_out[node] = why

    def _give_up_questions(self, grid: Grid) -> None:
        """Ask again who did not answer for long: the question may have been lost with a broken connection."""
        late = {one for one, (_, then) in self._asked.items() if time.monotonic() - then > QUESTION_SECONDS}
        for one in late:
            self._known.discard(self._asked.pop(one)[0])
        if late and isinstance(grid, PromptGrid):
            grid.forget(late)

    def _missing(self, count: int) -> str:
        """Say how many are here, and who is missing of those that this run knows."""
        absent = sorted(self.identities.keys() - self.nodes.keys() - self.put_out.keys())
        named = ", ".join(absent[:MOST_NAMES]) + (", ..." if len(absent) > MOST_NAMES else "")
        who = f" (missing: {named})" if absent else ""
        return f"waiting for clients: {len(self.nodes)} of {count} are here{who}"


def _name_of(node: int, grid: Grid) -> str:
    """Return whose node it is, where the grid knows."""
    return grid.client_name(node) if isinstance(grid, PromptGrid) else ""
