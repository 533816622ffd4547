"""A client with a registered key that sends what it should not: it is refused, said so, and nobody else notices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.proto.message_pb2 import ObjectTree

from client.link import Link
from client.node import Connection, NodeStoppedError
from common.codec.payload import encode_upload
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.messages import Introduction, Report, pack_introduction, pack_report
from common.program.bundle import Bundle
from common.rounds.records import PeakMemory
from common.rounds.state import Upload
from server.keys.folder import Keys
from server.link.hub import Hub
from strategies.flower.terms import Terms
from tests.harness.memory import messages_in_memory
from tests.harness.processes import client_process, deploy
from tests.harness.witness import Witness

NAME = "client-2"
SIZE, KEPT = 650, 65
Trick = Callable[[int], RecordDict]


def report(number: int, model: torch.Tensor, client: str = NAME) -> RecordDict:
    upload = encode_upload(Upload(model=model), "float32")
    return pack_report(Report(client=client, round=number, seconds={"train": 0.1}, peak=PeakMemory(1.0), upload=upload))


def payload(data: bytes, number: int) -> RecordDict:
    """Return a report with these bytes as its payload."""
    array = Array(dtype="uint8", shape=(len(data),), stype="proxskip", data=data)
    config = ConfigRecord(
        {"client": NAME, "round": number, "seconds": 0.1, "peak-memory-mb": 1.0, "peak-vram-mb": -1.0}
    )
    return RecordDict({"vectors": ArrayRecord({"payload": array}), "proxskip": config})


def sparse(value: float = 0.5, size: int = SIZE, kept: int = KEPT) -> torch.Tensor:
    vector = torch.zeros(size)
    vector[:kept] = value
    return vector


def damaged(number: int) -> RecordDict:
    content = report(number, sparse())
    record = content["vectors"]
    assert isinstance(record, ArrayRecord)
    data = bytearray(record["payload"].data)
    data[-7] ^= 1
    return payload(bytes(data), number)


# What it sends in a round, and what the server says of that.
TRICKS: dict[str, Callable[[int], RecordDict]] = {
    "where 260 bytes of values were expected": lambda number: report(number, sparse(size=SIZE - 100)),
    "not finite": lambda number: report(number, sparse(float("nan"))),
    "for round 1": lambda _: report(1, sparse()),
    "66 values where at most 65": lambda number: report(number, sparse(kept=KEPT + 1)),
    "'client-0' for round": lambda number: report(number, sparse(), client="client-0"),
    "without 'proxskip'": lambda _: RecordDict(),
    "lengths add up": lambda number: payload(np.random.default_rng(1).bytes(1000), number),
    "a reply of 100000 bytes where at most": lambda number: payload(bytes(100_000), number),
    "checksum": damaged,
    "norm is beyond 100": lambda number: report(number, sparse(1e6)),
    "an upload of 'xxxx": lambda number: report(number, sparse(), client="x" * 10_000),
}


class Mallory:
    """Speaks raw gRPC; does one bad thing a round."""

    def __init__(self, address: str, bundle: Path, tricks: list[Trick]) -> None:
        self.connection = Connection(Link.of_bundle(Bundle.read(bundle), address))
        self._tricks = tricks
        self.failure: BaseException | None = None

    def serve(self) -> None:
        try:
            self.connection.open()
            while True:
                pulled = self.connection.pull()
                if pulled is not None:
                    self._reply(*pulled)
        except NodeStoppedError:
            pass
        except BaseException as error:
            self.failure = error

    def _reply(self, message: Message, tree: ObjectTree) -> None:
        if tree.object_id:  # the question who it is, where that came before its first pull
            message = self.connection.content(message, tree)
            self.connection.push_objects(Message(self._answer(message), reply_to=message), 0.1)
        else:
            message = self.connection.pieces(message)
            self.connection.push_whole(Message(self._answer(message), reply_to=message), 0.1)

    def _answer(self, message: Message) -> RecordDict:
        if message.metadata.message_type != MessageType.TRAIN:
            return pack_introduction(Introduction(client=NAME, identity="m"))
        config = message.content["proxskip"]
        assert isinstance(config, ConfigRecord)
        assert isinstance(config["round"], int)
        self._answer_a_stranger(message)
        return self._tricks[(config["round"] - 1) % len(self._tricks)](config["round"])

    def _answer_a_stranger(self, message: Message) -> None:
        """Answer a message that nobody sent, as if it were of another run."""
        stranger = Message(report(1, sparse()), reply_to=message)
        stranger.metadata.__dict__["_reply_to_message_id"] = "0" * 32
        with pytest.raises(grpc.RpcError) as refused:
            self.connection.push_whole(stranger, 0.1)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A server and two honest clients; the third key is Mallory's."""
    keys = Keys.init(tmp_path / "keys", ["127.0.0.1"], 9092)
    bundles = [keys.add(f"client-{index}") for index in range(3)]
    with Hub("127.0.0.1:0", keys) as hub:
        honest = [(str(bundles[index]), "--server", hub.address, "--partition", f"{index}/3") for index in (0, 1)]
        with (
            client_process(*honest[0], log=tmp_path / "0.log"),
            client_process(*honest[1], log=tmp_path / "1.log"),
        ):
            yield hub


def bundle_of(folder: Path) -> Path:
    return folder / "keys" / "bundles" / f"{NAME}.join"


def run_with(hub: Hub, bundle: Path, tricks: list[Trick], rounds: int) -> Witness:
    mallory = Mallory(hub.address, bundle, tricks)
    thread = threading.Thread(target=mallory.serve)
    thread.start()
    try:
        run = deploy(hub, experiment_of(rounds), Terms(minimum_clients=2, deadline_seconds=60, largest_norm=100.0))
    finally:
        mallory.connection.cancel()
        thread.join(20)
        mallory.connection.close()
    if mallory.failure is not None:
        raise mallory.failure
    return run


def experiment_of(rounds: int) -> Experiment:
    return load_experiment("digits", ["clients=3", f"rounds={rounds}", "schedule.period=3"])


def test_whatever_it_sends_the_others_are_averaged_without_it(hub: Hub, tmp_path: Path) -> None:
    run = run_with(hub, bundle_of(tmp_path), list(TRICKS.values()), len(TRICKS))
    assert run.counted == [2] * len(TRICKS)
    for record, reason in zip(run.records, TRICKS, strict=True):
        ((why, missing),) = record.clients_missing.items()
        assert missing.names == [NAME], record.round
        assert reason in why
        assert len(why) <= 301
    assert run.model.isfinite().all()


def test_the_server_keeps_nothing_of_what_it_refuses(hub: Hub, tmp_path: Path) -> None:
    tricks = [TRICKS[name] for name in ("not finite", "checksum", "lengths add up")]
    bundle = bundle_of(tmp_path)
    run_with(hub, bundle, tricks, 10)
    before = messages_in_memory()
    run_with(hub, bundle, tricks, 100)
    assert messages_in_memory() <= before + 10  # what is on its way may differ; each refusal had two messages
