"""What is written down of a round: one definition, deployed and simulated, that survives its file."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from flwr.app import Message, MessageType
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.experiment.files import load_experiment
from common.messages.messages import Run
from common.rounds.account import RoundAccount
from common.rounds.records import (
    OTHER_REASONS,
    ClientRecord,
    Effort,
    Missing,
    PeakMemory,
    RoundRecord,
    Traffic,
    by_reason,
    clients_of_json,
)
from common.say import Event
from server.runs.course import Course
from server.runs.events import EventLog
from server.runs.recorder import Recorder
from server.runs.report import curve
from server.runs.run_folder import RunFolder
from server.simulation.simulation import Simulation
from strategies.flower.prompt_grid import Carried, PromptGrid
from strategies.flower.terms import Terms
from tests.harness.loopback import Fate, LoopbackClient, LoopbackGrid
from tests.harness.watch import some_record
from tests.harness.witness import CPU, Witness, load

CLIENTS = 4
EXPERIMENT = load_experiment("digits", [f"clients={CLIENTS}", "rounds=3", "schedule.period=4"])

counts = st.none() | st.integers(0, 2**40)
numbers = st.floats(allow_nan=False, allow_infinity=False)
traffic = st.builds(
    Traffic, payload_bytes_up=counts, payload_bytes_down=counts, message_bytes_up=counts, message_bytes_down=counts
)
records = st.builds(
    RoundRecord,
    clients_missing=st.dictionaries(st.text(), st.builds(Missing, st.integers(0, 1000), st.lists(st.text()))),
    traffic_beside_training=st.dictionaries(st.sampled_from(["audit", "evaluate", "join"]), traffic),
    metrics=st.dictionaries(st.text(), numbers),
    seconds_by_phase=st.dictionaries(st.text(), numbers),
    by_client=st.just({}),
    paper_bits_up=numbers,
    density_up=numbers,
    density_down=numbers,
    seconds=numbers,
    control_sum_norm=st.none() | numbers,
)


@given(records)
def test_a_record_survives_its_line(record: RoundRecord) -> None:
    line = record.to_json()
    assert "\n" not in line
    assert RoundRecord.of_json(line) == record


def one_record(clients: int = 554) -> RoundRecord:
    """Return a deployed round's record, all clients counted, with numbers as long as they get."""
    (record, *_) = Simulation(EXPERIMENT, load(EXPERIMENT), CPU).rounds()
    seconds = dict.fromkeys(("download", "train", "encode", "save", "upload"), 1 / 3)
    one = ClientRecord(
        paper_bits_up=2080,
        payload_bytes_up=123456,
        payload_bytes_down=123456,
        message_bytes_up=123456,
        message_bytes_down=123456,
        memory_mb=1000 / 3,
        seconds=seconds,
    )
    names = [f"client-{index}" for index in range(clients)]
    beside = {purpose: Traffic(message_bytes_up=10**9, message_bytes_down=10**9) for purpose in ("audit", "join")}
    return replace(
        record,
        clients=clients,
        clients_counted=clients,
        traffic_beside_training=beside,
        waited_for=names[-1],
        seconds_by_phase=seconds,
        by_client=dict.fromkeys(names, one),
    )


def test_a_rounds_line_is_short_however_many_clients_there_are() -> None:
    record = one_record()
    assert len(record.to_json()) < 4000
    names = list(record.by_client)
    away = dict.fromkeys(names[3:400], "no answer before the deadline")
    away |= {name: f"{name} has said something long of its own: {'x' * 200}" for name in names[400:]}
    lonely = replace(record, clients_counted=3, clients_missing=by_reason(away))
    assert len(lonely.to_json()) < 4000
    assert lonely.clients_missing["no answer before the deadline"].clients == 397
    assert lonely.clients_missing["no answer before the deadline"].names[0] == "client-10"
    assert sum(group.clients for group in lonely.clients_missing.values()) == 551
    assert OTHER_REASONS in lonely.clients_missing
    assert "client-10" in lonely.missing_names
    assert RoundRecord.of_json(lonely.to_json()) == replace(lonely, by_client={})


def test_what_is_each_clients_own_is_a_compact_line_of_its_own() -> None:
    record = replace(one_record(), round=3, by_client={"client-0": one_record().by_client["client-0"]})
    line = record.clients_to_json()
    assert line.startswith('{"round":3,"clients":{"client-0":{')
    assert "null" not in line
    assert '"memory_mb":333.3' in line
    assert '"train":0.3333,' in line
    number, clients = clients_of_json(line)
    assert number == 3
    assert clients["client-0"].payload_bytes_up == 123456
    assert clients["client-0"].vram_mb is None
    least = replace(record, by_client={"client-0": ClientRecord(paper_bits_up=32)})
    assert json.loads(least.clients_to_json())["clients"]["client-0"] == {"paper_bits_up": 32}


def test_clients_are_read_round_by_round_and_cut_with_the_rounds(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT, "digits")
    assert list(folder.clients()) == []
    record = one_record(2)
    for number in (1, 2, 3, 4):
        folder.add_clients(replace(record, round=number))
    folder.go_back_to(replace(record, round=2))
    with (folder.path / "clients.jsonl").open("a") as file:
        file.write('{"round":3,"clients":{')
    with pytest.raises(UserError, match=r"clients\.jsonl was written by another version, or damaged"):
        list(folder.clients())
    folder.go_back_to(replace(record, round=3))
    assert [number for number, _ in folder.clients()] == [1, 2]
    folder.go_back_to(None)
    assert list(folder.clients()) == []


def events_in(folder: RunFolder) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]


def test_all_that_a_recorder_is_told_is_kept_and_what_is_worth_it_shown(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT, "digits")
    shown: list[str] = []
    recorder = Recorder(folder, EXPERIMENT, show=lambda _: None, say=shown.append)
    recorder.say("a plain line")
    recorder.say(Event("client-1 has joined", kind="joined", client="client-1"))
    recorder.say(Event(f"evil\r\n\x1b[31m\u2028{'x' * 1000}", kind="left", client="client-1\n"))
    assert shown[0] == "a plain line"
    assert len(shown) == 2
    assert shown[1].startswith("evil   [31m xxx")
    assert len(shown[1]) == 500
    events = events_in(folder)
    assert [one["kind"] for one in events] == ["started", "notice", "joined", "left"]
    assert [one["client"] for one in events] == ["", "", "client-1", "client-1 "]
    assert events[-1]["text"] == shown[1]
    assert all(datetime.now(UTC) - datetime.fromisoformat(one["time"]) < timedelta(minutes=1) for one in events)


def test_events_are_only_appended_also_after_a_torn_one(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT, "digits")
    (folder.path / "events.jsonl").write_text('{"time": "2026')
    EventLog(folder, lambda _: None).say("a line")
    torn, whole = (folder.path / "events.jsonl").read_text().splitlines()
    assert torn == '{"time": "2026'
    assert json.loads(whole)["text"] == "a line"


def test_a_full_disk_takes_no_line_from_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT, "digits")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shown: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.open", full)
        EventLog(folder, shown.append).say("it goes on")
    assert shown == ["it goes on"]
    assert not (folder.path / "events.jsonl").exists()


def test_nothing_is_kept_of_a_run_that_is_not_begun(tmp_path: Path) -> None:
    shown: list[str] = []
    EventLog(RunFolder(tmp_path), shown.append).say("listening")
    assert shown == ["listening"]
    assert not list(tmp_path.iterdir())


def test_a_record_survives_its_file_and_another_versions_is_one_line(tmp_path: Path) -> None:
    (record, *_) = Simulation(EXPERIMENT, load(EXPERIMENT), CPU).rounds()
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT, "digits")
    folder.add_round(record)
    assert folder.rounds() == [record]
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "local_steps": 4}\n')
    with pytest.raises(UserError, match=r"rounds\.jsonl was written by another version, or damaged"):
        folder.rounds()


def test_bytes_that_are_no_text_are_one_line_and_keep_no_run_from_going_on(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", load_experiment("digits"), "digits")
    record = some_record(1, 3)
    folder.add_clients(record)
    folder.add_round(record)
    for name in ("rounds.jsonl", "clients.jsonl"):
        with (folder.path / name).open("ab") as file:
            file.write(b'{"round":2,\xff\xfe}\n')
    with pytest.raises(UserError, match=r"rounds\.jsonl was written by another version, or damaged") as damaged:
        folder.rounds()
    assert len(str(damaged.value)) < 1000
    course = Course("test_accuracy")
    course.catch_up([record], folder.clients())
    assert course.counted["client-0"] == 1
    folder.go_back_to(some_record(2, 3))
    assert [one.round for one in folder.rounds()] == [1, 2]


def test_what_is_a_clients_is_a_mean_over_all_of_them() -> None:
    """Two of four clients send 3 and 1 values of 8: 32 bits for a client, though those counted have sent 64."""
    model = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0])
    account = RoundAccount(EXPERIMENT.plan(2), model, clients=4)
    spent = account.spent_on("train")
    spent.payload_up.update({"a": 30, "b": 10})
    spent.payload_down.update({"a": 5, "b": 5})
    spent.message_up["a"] += 50
    account.spent_on("audit").payload_up["a"] += 7
    record = account.record(
        bits_up_before=100.0,
        values={"a": 3, "b": 1},
        model_values=4,
        control_sum_norm=None,
        metrics={"m": 1.0},
        efforts={"a": Effort(PeakMemory(9.0), {}), "b": Effort(PeakMemory(7.0, 2.0), {"train": 0.5})},
        waited_for="b",
    )
    assert record.paper_bits_up == 100 + 32 * 4 / 4
    assert (record.density_up, record.density_down) == (4 / 16, 1 / 8)
    assert (record.payload_bytes_up, record.payload_bytes_down, record.message_bytes_up) == (40, 10, 50)
    assert record.traffic_beside_training == {"audit": Traffic(payload_bytes_up=7)}
    assert record.by_client["b"] == ClientRecord(
        paper_bits_up=32,
        payload_bytes_up=10,
        payload_bytes_down=5,
        memory_mb=7.0,
        vram_mb=2.0,
        seconds={"train": 0.5},
    )
    assert (record.waited_for, record.seconds_by_phase) == ("b", {"train": 0.5})
    assert datetime.now(UTC) - datetime.fromisoformat(record.time) < timedelta(minutes=1)
    assert record.all_message_bytes == (50, 0)
    assert curve([record], "m", as_sent=True) == [(8 * 40 / 4, 1.0)]


def grid_without(lost: int | None = None) -> LoopbackGrid:
    run = Run(experiment=EXPERIMENT, name="records")
    clients = {index + 1: LoopbackClient(index, None, run) for index in range(CLIENTS)}

    def fate(message: Message) -> Fate:
        trains = message.metadata.message_type == MessageType.TRAIN
        return Fate.LOST if trains and message.metadata.dst_node_id == lost else Fate.ANSWERED

    return LoopbackGrid(clients, fate)


class CountingGrid(LoopbackGrid, PromptGrid):
    """A grid that knows its bytes, as our own link does: 1000 down and 10 up for an order, 1 down for anything else."""

    beside = 0

    def wait_for_reply(self, seconds: float) -> None:
        raise AssertionError("answers are here at once")

    def forget(self, message_ids: Iterable[str]) -> None: ...

    def limit_replies(self, largest_bytes: int) -> None: ...

    def client_name(self, node_id: int) -> str:
        return f"client-{node_id - 1}"

    def know(self, identities: Mapping[str, str]) -> None: ...

    def carried(self, message_id: str) -> Carried:
        return Carried(1000, 10, {"upload": 0.5})

    def carried_beside(self) -> Carried:
        beside, self.beside = self.beside, 0
        return Carried(beside, 0)

    def _deliver(self, message: Message) -> str:
        self.beside += message.metadata.message_type != MessageType.TRAIN
        return super()._deliver(message)


def test_all_attempts_at_a_round_are_counted_as_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.flower.strategy.FIRST_PAUSE_SECONDS", 0.0)
    lost = iter([True])

    def fate(message: Message) -> Fate:
        of_round_two = message.metadata.message_type == MessageType.TRAIN and message.metadata.group_id == "2"
        return Fate.LOST if of_round_two and next(lost, False) else Fate.ANSWERED

    grid = CountingGrid(grid_without().clients, fate)
    first, second, third = Witness(EXPERIMENT).run(grid).records
    assert (first.message_bytes_down, first.message_bytes_up) == (1000 * CLIENTS, 10 * CLIENTS)
    assert first.traffic_beside_training == {"link": Traffic(message_bytes_up=0, message_bytes_down=CLIENTS)}
    assert (second.message_bytes_down, second.message_bytes_up) == (2 * 1000 * CLIENTS, 2 * 10 * CLIENTS)
    assert second.by_client["client-0"].message_bytes_down == 2000
    assert second.by_client["client-0"].seconds["upload"] == 0.5
    assert not second.traffic_beside_training
    assert third.message_bytes_down == 1000 * CLIENTS


def test_bytes_are_counted_alike_deployed_and_simulated_also_where_a_client_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = Witness(EXPERIMENT, Terms(minimum_clients=3)).run(grid_without(2)).records
    problem = load(EXPERIMENT)
    monkeypatch.setattr(problem, "batched", False)  # a batch has other last bits
    simulation = Simulation(EXPERIMENT, problem, CPU)
    monkeypatch.setattr(simulation, "_present", lambda _: [0, 2, 3])
    partly = list(simulation.rounds())
    for deployed, simulated in zip(away, partly, strict=True):
        assert deployed.clients_missing == {"lost on the way": Missing(1, ["client-1"])}
        assert deployed.waited_for in deployed.by_client
        assert not simulated.waited_for
        assert deployed.payload_bytes_up == simulated.payload_bytes_up
        assert sum(one.payload_bytes_up or 0 for one in deployed.by_client.values()) == simulated.payload_bytes_up
        assert not simulated.by_client
        assert deployed.clients == simulated.clients == CLIENTS
        assert deployed.clients_counted == simulated.clients_counted == 3
        assert deployed.paper_bits_up == simulated.paper_bits_up == 32 * 65 * 3 / 4 * deployed.round


def test_all_payloads_are_counted_by_what_they_are_for() -> None:
    terms = Terms(minimum_clients=3, audit_every_rounds=2, evaluate_on_clients=True)
    run = Witness(EXPERIMENT, terms).run(grid_without())
    spent = [record.traffic_beside_training for record in run.records]
    assert [sorted(one) for one in spent] == [["evaluate"], ["audit", "evaluate"], ["evaluate"]]
    evaluated, audited = spent[1]["evaluate"], spent[1]["audit"]
    assert evaluated.payload_bytes_down is not None
    assert evaluated.payload_bytes_down > CLIENTS * 65 * 4  # a pruned model each
    assert not evaluated.payload_bytes_up
    assert audited.payload_bytes_down is not None
    assert audited.payload_bytes_up is not None
    assert audited.payload_bytes_up > CLIENTS * 65 * 4  # a control each, on the support of all uploads so far
