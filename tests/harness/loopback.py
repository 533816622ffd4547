"""A federation without a network: the deployed apps and strategy in one process, where messages get lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from pathlib import Path
from uuid import uuid4

import torch
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from client.app import make_app
from client.part import Part
from client.round import Participant, Station
from common.messages.flower import CLIENT_GONE, begin_run, set_message_id
from common.messages.messages import Run
from strategies.flower.prompt_grid import PlainGrid


class Fate(Enum):
    """What becomes of a message and of its answer."""

    ANSWERED = auto()
    LOST = auto()  # on its way to the client
    ANSWER_LOST = auto()
    KILLED = auto()  # the client, before it had done anything
    KILLED_AFTER = auto()  # the client, when it had saved its memory and before it answered


class LoopbackClient:
    """A client that may be killed: what is not on its disk is then gone."""

    def __init__(
        self, index: int, state: Path | None, run: Run, kind: type[Participant] = Participant, name: str = ""
    ) -> None:
        self._participant: Participant | None = None
        self._kind = kind
        self._run = run
        self._station = Station(
            name=name or f"client-{index}",
            part=Part(index, run.experiment.clients),
            data=None,
            device=torch.device("cpu"),
            state_folder=state,
        )
        self._app: ClientApp = make_app(self._participant_for, say=lambda _: None)

    def kill(self) -> None:
        """End, and be started again by the next message."""
        self._participant = None

    def answer(self, message: Message) -> Message:
        """Do what a message asks for."""
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        return self._app(message, context)

    def _participant_for(self, _: Context) -> Participant:
        if self._participant is None:
            self._participant = self._kind.join(self._run.experiment, self._station, self._run.name)
        return self._participant


class LoopbackGrid(PlainGrid):
    """A Flower grid whose nodes are clients in this process; `fate` decides of every message but the first question."""

    def __init__(self, clients: dict[int, LoopbackClient], fate: Callable[[Message], Fate]) -> None:
        self.clients = clients
        self._fate = fate
        self._replies: dict[str, Message] = {}
        begin_run()

    def get_node_ids(self) -> Iterable[int]:
        """Return the clients that are here."""
        return list(self.clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let clients answer at once."""
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers."""
        return [self._replies.pop(one) for one in message_ids if one in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and return the answers."""
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        set_message_id(message, uuid4().hex)
        client = self.clients[node]
        fate = Fate.ANSWERED if message.metadata.message_type == MessageType.QUERY else self._fate(message)
        reply = None
        if fate not in (Fate.LOST, Fate.KILLED):
            reply = client.answer(message)
        if fate in (Fate.KILLED, Fate.KILLED_AFTER):
            client.kill()
        if reply is None or fate is not Fate.ANSWERED:
            reply = Message(Error(CLIENT_GONE, "lost on the way"), reply_to=message)
        self._replies[message.metadata.message_id] = reply
        return message.metadata.message_id
