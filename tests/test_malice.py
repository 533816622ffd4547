"""A client with a registered key that sends what it should not: it is refused, said so, and nobody else notices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from client.link import Link
from common.codec.payload import encode_upload
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.content import arrays_of, content_of, head_of, payload_of
from common.messages.messages import Introduction, Report, pack_introduction, pack_report
from common.messages.messages_pb2 import Question, Task
from common.program.bundle import Bundle
from common.rounds.records import PeakMemory
from common.rounds.state import Upload
from server.keys.folder import Keys
from server.link import service
from server.link.hub import Hub
from strategies.flower.terms import Terms
from tests.harness.memory import messages_in_memory
from tests.harness.processes import client_process, deploy
from tests.harness.random_vectors import sealed
from tests.harness.raw_stream import RawStream
from tests.harness.witness import Witness

NAME = "client-2"
SIZE, KEPT = 650, 65
Trick = Callable[[int], RecordDict]


def report(number: int, model: torch.Tensor, client: str = NAME) -> RecordDict:
    upload = encode_upload(Upload(model=model))
    return pack_report(Report(client=client, round=number, seconds={"train": 0.1}, peak=PeakMemory(1.0), upload=upload))


def payload(data: bytes, number: int) -> RecordDict:
    """Return a report with these bytes as its payload."""
    return content_of(head_of(report(number, sparse())), arrays_of(data))


def sparse(value: float = 0.5, size: int = SIZE, kept: int = KEPT) -> torch.Tensor:
    vector = torch.zeros(size)
    vector[:kept] = value
    return vector


def damaged(number: int) -> RecordDict:
    data = bytearray(payload_of(report(number, sparse()))[:])
    data[-7] ^= 1
    return payload(bytes(data), number)


# What it sends in a round, and what the server says of that.
TRICKS: dict[str, Callable[[int], RecordDict]] = {
    "where 260 bytes of values were expected": lambda number: report(number, sparse(size=SIZE - 100)),
    "not finite": lambda number: report(number, sparse(float("nan"))),
    "for round 1": lambda _: report(1, sparse()),
    "66 values where at most 65": lambda number: report(number, sparse(kept=KEPT + 1)),
    "'client-0' for round": lambda number: report(number, sparse(), client="client-0"),
    "a reply that is nothing where a report was expected": lambda _: content_of(b""),
    "bytes that are no Reply": lambda _: content_of(b"\xff"),
    "an unknown form": lambda number: payload(sealed(b"\x20" + np.random.default_rng(1).bytes(1000)), number),
    "checksum": damaged,
    "norm is beyond 100": lambda number: report(number, sparse(1e6)),
    "an upload of 'xxxx": lambda number: report(number, sparse(), client="x" * 10_000),
    # The last, as it is cut off for it:
    "a reply of 100000 bytes where at most": lambda number: payload(bytes(100_000), number),
}


class Mallory:
    """Speaks raw frames; does one bad thing a round, and comes again when it is cut off."""

    def __init__(self, address: str, bundle: Path, tricks: list[Trick]) -> None:
        self._link = Link.of_bundle(Bundle.read(bundle), address)
        self._tricks = tricks
        self._leaving = threading.Event()
        self._stream: RawStream | None = None
        self._thread = threading.Thread(target=self._serve)
        self.told: list[str] = []  # why it was refused
        self.failure: BaseException | None = None

    def __enter__(self) -> Mallory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        if self._stream is not None:
            self._stream.call.cancel()
        self._thread.join(20)
        if self.failure is not None:
            raise self.failure

    def _serve(self) -> None:
        try:
            while not self._leaving.wait(0.1):
                with RawStream(self._link) as self._stream:
                    self._converse(self._stream.hello(NAME))
        except BaseException as error:
            self.failure = error

    def _converse(self, stream: RawStream) -> None:
        while (frame := stream.hear()) is not None:
            if frame.HasField("task"):
                content = self._answer(frame.task)
                stream.answer(frame.task.task, head_of(content), payload_of(content)[:])
            elif frame.HasField("refused"):
                self.told.append(frame.refused.reason)

    def _answer(self, task: Task) -> RecordDict:
        question = Question.FromString(task.question)
        if not question.HasField("train"):
            return pack_introduction(Introduction(client=NAME, identity=f"of {NAME}"))
        number = int(question.train.plan.round)
        return self._tricks[(number - 1) % len(self._tricks)](number)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server and two honest clients; the third key is Mallory's."""
    monkeypatch.setattr(service, "PENALTY_SECONDS", 0.5)
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


def run_with(hub: Hub, bundle: Path, tricks: list[Trick], rounds: int) -> tuple[Witness, Mallory]:
    terms = Terms(minimum_clients=2, deadline_seconds=60, largest_norm=100.0)
    with Mallory(hub.address, bundle, tricks) as mallory:
        return deploy(hub, experiment_of(rounds), terms), mallory


def experiment_of(rounds: int) -> Experiment:
    return load_experiment("digits", ["clients=3", f"rounds={rounds}", "schedule.period=3"])


def test_whatever_it_sends_the_others_are_averaged_without_it(hub: Hub, tmp_path: Path) -> None:
    run, mallory = run_with(hub, bundle_of(tmp_path), list(TRICKS.values()), len(TRICKS))
    assert run.counted == [2] * len(TRICKS)
    for record, reason in zip(run.records, TRICKS, strict=True):
        ((why, missing),) = record.clients_missing.items()
        assert missing.names == [NAME], record.round
        assert reason in why
        assert len(why) <= 301
    assert run.model.isfinite().all()
    assert len(mallory.told) <= 2, "it is told why, and then to wait"
    assert all("a reply of 100000 bytes" in why or "stays out for" in why for why in mallory.told)


def test_who_was_cut_off_may_come_again_and_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    """It takes a moment: the others do not wait for it, so there are rounds that it does not see."""
    run, mallory = run_with(hub, bundle_of(tmp_path), [list(TRICKS.values())[-1]], 200)
    assert run.counted == [2] * 200
    assert sum("a reply of 100000 bytes" in why for why in mallory.told) >= 2


def test_the_server_keeps_nothing_of_what_it_refuses(hub: Hub, tmp_path: Path) -> None:
    tricks = [TRICKS[name] for name in ("not finite", "checksum", "an unknown form")]
    bundle = bundle_of(tmp_path)
    run_with(hub, bundle, tricks, 10)
    before = messages_in_memory()
    run_with(hub, bundle, tricks, 100)
    assert messages_in_memory() <= before + 10  # what is on its way may differ; each refusal had two messages
