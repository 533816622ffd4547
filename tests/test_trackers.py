"""Runs told to other tools: what these then have, read back from their own files."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from common.errors import UserError
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.rounds.records import RoundRecord
from common.say import Event
from server.runs.run_folder import RunFolder
from server.simulation.simulation import Simulation
from server.tracking import tracking
from server.tracking.tracker import TrackedRun, Tracker, require_trackers, scalars
from server.tracking.tracking import tracked
from tests.harness.models import linear_model
from tests.harness.processes import proxskip_server
from tests.harness.witness import CPU, load
from tests.test_programs import run_here, simulate

# What the tools themselves use of others is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROUNDS = 6
SETTINGS = ["--set", "rounds=3", "--set", "clients=2"]
HAS_WANDB = importlib.util.find_spec("wandb") is not None
TOOLS = [
    "tensorboard",
    "mlflow",
    pytest.param("wandb", marks=pytest.mark.skipif(not HAS_WANDB, reason="wandb is not installed")),
]

Told = dict[str, list[tuple[int, float]]]  # by name: steps and values


@pytest.fixture(autouse=True)
def _tools_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for limit in ("LONGEST_END_SECONDS", "LONGEST_STOP_SECONDS"):
        monkeypatch.setattr(tracking, limit, 120.0)  # whatever else this machine does


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load_experiment("digits", ["clients=2", f"rounds={ROUNDS}", "schedule.period=4"])


@pytest.fixture(scope="module")
def records(experiment: Experiment) -> list[RoundRecord]:
    return list(Simulation(experiment, load(experiment), CPU).rounds())


@pytest.fixture
def run(experiment: Experiment, tmp_path: Path) -> TrackedRun:
    return TrackedRun(folder=RunFolder.create(tmp_path / "run", experiment, "digits"), experiment=experiment)


class CrashError(Exception):
    """The end of a run, as seen from inside."""


def go_through(tool: str, run: TrackedRun, rounds: list[RoundRecord], *, crash: bool = False) -> list[str]:
    """Do rounds as the recorder does, told to a tool; return what was said."""
    said: list[str] = []
    with suppress(CrashError), tracked([tool], run, said.append) as track:
        for record in rounds:
            run.folder.add_round(record)
            track(record)
        if crash:
            raise CrashError
    return said


def told_to(tool: str, folder: Path) -> Told:
    return {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}[tool](folder)


def _tensorboard(folder: Path) -> Told:
    """Read event files as TensorFlow defines them: length, its checksum, an event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event as TensorBoardEvent

    told: Told = {}
    for file in (folder / "tracked" / "tensorboard").glob("events*"):
        rest = file.read_bytes()
        while rest:
            (length,) = struct.unpack_from("<Q", rest)
            event = TensorBoardEvent.FromString(rest[12 : 12 + length])
            rest = rest[16 + length :]
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    told.setdefault(value.tag, []).append((event.step, value.simple_value))
    return told


def _mlflow(folder: Path) -> Told:
    told: Told = {}
    with sqlite3.connect(folder.parent / "mlflow.db") as database:
        for name, step, value in database.execute("select key, step, value from metrics order by step"):
            told.setdefault(name, []).append((step, value))
    return told


def _wandb(folder: Path) -> Told:
    """Read the offline file: records of a LevelDB log, all in its first block here, each a message of wandb's."""
    from wandb.proto.wandb_internal_pb2 import Record

    told: Told = {}
    (file,) = (folder / "tracked" / "wandb").glob("offline-run-*/*.wandb")
    for data in _leveldb_records(file.read_bytes()[7:]):
        for history in [Record.FromString(data).history]:
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in history.item}
            for name in items.keys() - {"_step", "_timestamp", "_runtime"}:
                told.setdefault(name, []).append((items["_step"], items[name]))
    return told


def _leveldb_records(block: bytes) -> Iterator[bytes]:
    assert len(block) < 32_000
    while len(block) > 7:
        length = int.from_bytes(block[4:6], "little")
        yield block[7 : 7 + length]
        block = block[7 + length :]


def assert_each_round_once(told: Told, records: list[RoundRecord]) -> None:
    for name in scalars(records[0]):
        expected = [(record.round, scalars(record)[name]) for record in records]
        assert [step for step, _ in told[name]] == [step for step, _ in expected], name
        assert [value for _, value in told[name]] == pytest.approx([value for _, value in expected]), name


@pytest.mark.parametrize("tool", TOOLS)
def test_a_run_that_goes_on_is_told_to_the_same_run_and_each_round_once(
    tool: str, run: TrackedRun, records: list[RoundRecord]
) -> None:
    assert go_through(tool, run, records[:4], crash=True) == []
    run.folder.go_back_to(records[1])  # as far as the journal had come
    assert go_through(tool, run, records[2:]) == []
    assert_each_round_once(told_to(tool, run.folder.path), records)
    if tool == "mlflow":
        with sqlite3.connect(run.folder.path.parent / "mlflow.db") as database:
            assert database.execute("select status, name from runs").fetchall() == [("FINISHED", "run")]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_comes_later_is_told_all_rounds(tool: str, run: TrackedRun, records: list[RoundRecord]) -> None:
    for record in records[:3]:
        run.folder.add_round(record)
    assert go_through(tool, run, records[3:]) == []
    assert_each_round_once(told_to(tool, run.folder.path), records)


def test_the_numbers_of_a_round() -> None:
    record = RoundRecord(
        round=3,
        time="2026-01-01T00:00:00.000Z",
        local_steps=16,
        clients=2,
        clients_counted=1,
        paper_bits_up=64.0,
        density_up=0.1,
        density_down=0.2,
        control_sum_norm=None,
        seconds=1.5,
        metrics={"test_accuracy": 0.5},
        payload_bytes_up=100,
        waited_for="client-1",
        seconds_by_phase={"train": 1.25},
    )
    assert scalars(record) == {
        "local_steps": 16,
        "clients_counted": 1,
        "paper_bits_up": 64.0,
        "density_up": 0.1,
        "density_down": 0.2,
        "seconds": 1.5,
        "payload_bytes_up": 100,
        "seconds_train": 1.25,
        "test_accuracy": 0.5,
    }


def test_a_simulation_with_two_tools_ends_with_the_bits_that_it_has_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate("digits", *SETTINGS, output=tmp_path / "alone")
    tools = ["--track", "tensorboard", "--track", "mlflow", "--track", "mlflow"]
    simulate("digits", *SETTINGS, *tools, output=tmp_path / "told")
    models = [linear_model(tmp_path / name) for name in ("alone", "told")]
    assert models[0].equal(models[1])
    for tool in ("tensorboard", "mlflow"):
        assert_each_round_once(told_to(tool, tmp_path / "told"), RunFolder(tmp_path / "told").rounds())
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        parameters = dict(database.execute("select key, value from params"))
    assert parameters["algorithm.name"] == "sparse_proxskip"
    assert parameters["rounds"] == "3"
    assert "--track" not in capsys.readouterr().out


def test_a_deployed_run_is_told_with_its_bytes(tmp_path: Path) -> None:
    finished = proxskip_server(
        "local", "digits", *SETTINGS, "--track", "tensorboard", "--output", str(tmp_path / "run")
    )
    assert finished.returncode == 0, finished.stderr
    told = told_to("tensorboard", tmp_path / "run")
    records = RunFolder(tmp_path / "run").rounds()
    assert told["message_bytes_up"] == [(record.round, record.message_bytes_up) for record in records]
    assert_each_round_once(told, records)


class Failing(Tracker):
    """A tool that breaks at the second round."""

    package = "json"

    def __init__(self, run: TrackedRun) -> None:
        self.logged: list[int] = []

    def log(self, record: RoundRecord) -> None:
        self.logged.append(record.round)
        if record.round == 2:
            raise RuntimeError("the disk of the tool\nis full")

    def close(self, *, finished: bool) -> None: ...


class Hanging(Failing):
    """A tool that never answers."""

    def log(self, record: RoundRecord) -> None:
        threading.Event().wait()


def test_a_tool_that_fails_is_one_notice_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    run_here("simulate", "digits", *SETTINGS, "--track", "tests.test_trackers:Failing", "--output", str(output))
    assert RunFolder(output).is_finished
    events = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    (notice,) = (event for event in events if event["kind"] == "tracker")
    assert "the disk of the tool is full; the run goes on without it" in notice["text"]
    assert capsys.readouterr().out.count("the run goes on without it") == 1


def test_a_tool_that_hangs_does_not_keep_the_run(
    run: TrackedRun, records: list[RoundRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "LONGEST_END_SECONDS", 0.05)
    (said,) = go_through("tests.test_trackers:Hanging", run, records)
    assert isinstance(said, Event)
    assert (said.kind, "it has not taken all rounds" in said) == ("tracker", True)


def test_a_tracking_server_that_is_away_is_one_notice(
    run: TrackedRun, records: list[RoundRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (said,) = go_through("mlflow", run, records)
    assert "127.0.0.1:9" in said


def test_a_password_in_an_address_is_not_told(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("API request to http://me:secret@host/api failed")

    monkeypatch.setattr(tracking, "tracker_class", lambda _: fail)
    (said,) = go_through("mlflow", run, [])
    assert said == "--track mlflow: API request to http://host/api failed; the run goes on without it"


def test_tools_that_are_unknown_or_not_installed_are_refused_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    require_trackers(None)
    require_trackers(["tensorboard", "mlflow"])
    with pytest.raises(UserError, match="unknown tracker 'mlfow'; the nearest is 'mlflow'"):
        require_trackers(["mlfow"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"--track wandb needs wandb: pip install 'sparse-proxskip\[wandb\]'"):
        require_trackers(["wandb"])
