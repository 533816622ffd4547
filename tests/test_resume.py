"""A server that is killed goes on from its journal, and the run ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.errors import UserError
from common.experiment import plugins
from common.experiment.experiment import Codec, Experiment
from common.experiment.files import load_experiment
from common.rounds.algorithm import Algorithm
from common.rounds.history import History
from common.rounds.ledger import Checkpoint, Ledger
from common.rounds.records import RoundRecord
from common.rounds.state import Precision, ServerState
from common.vectors.remainder import Remainder
from server.deploy.federation import Federation
from server.link.hub import Hub
from server.runs.course import Course
from server.runs.journal import FILE, Journal, JournalEntry
from server.runs.recorder import Recorder
from server.runs.run_folder import RunFolder
from server.simulation.simulation import SIMULATION, Simulation
from strategies.flower.terms import Terms
from tests.harness.models import linear_model
from tests.harness.processes import clients, deploy, lines_in, local
from tests.harness.witness import CPU, load

CLIENTS = 2
ROUNDS = 6


class CrashError(Exception):
    """The server's end, as seen from inside."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with Hub("127.0.0.1:0") as hub, clients(hub.address, CLIENTS, tmp_path_factory.mktemp("logs")):
        yield hub


def experiment_of(name: str = "sparse_proxskip") -> Experiment:
    settings = [f"clients={CLIENTS}", f"rounds={ROUNDS}", "schedule.period=4", f"algorithm.name={name}"]
    return load_experiment("digits", settings)


def go_on(hub: Hub, experiment: Experiment, folder: RunFolder, crash_after: int | None) -> None:
    """Run from the journal until the end, or until the given round was recorded."""

    def show(record: RoundRecord) -> None:
        if record.round == crash_after:
            raise CrashError

    entry = Journal(folder.path, experiment).read()
    recorder = Recorder(folder, experiment, entry, show=show, say=lambda _: None)
    Federation(experiment, load(experiment), Terms(), recorder, Course("test_accuracy"), entry).run_on(hub)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "float32") for name in ("sparse_proxskip", "scaffold", "fediht", "fedcomloc_com", "locodl")),
        *((name, precision) for name in ("tamuna", "sparse_proxskip_arena") for precision in ("float32", "grid")),
    ],
)
def test_a_run_goes_on_after_crashes_and_ends_with_the_same_bits(
    name: str, precision: Precision, hub: Hub, tmp_path: Path
) -> None:
    experiment = replace(experiment_of(name), codec=Codec(precision=precision))
    undisturbed = deploy(hub, experiment)
    expected = undisturbed.records
    folder = RunFolder.create(tmp_path / "run", experiment, "digits")
    for crash_after in (1, 2, 5):
        with pytest.raises(CrashError):
            go_on(hub, experiment, folder, crash_after)
    go_on(hub, experiment, folder, None)
    model = linear_model(folder.path)
    assert model.equal(experiment.algorithm.evaluated(undisturbed.strategy.state).model)
    records = folder.rounds()
    assert [record.round for record in records] == list(range(1, ROUNDS + 1))
    assert [record.paper_bits_up for record in records] == [record.paper_bits_up for record in expected]
    assert [record.payload_bytes_up for record in records] == [record.payload_bytes_up for record in expected]
    assert_each_round_has_its_clients(folder, records)
    kinds = [json.loads(line)["kind"] for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert [kind for kind in kinds if kind not in ("notice", "joined")] == ["started", *["resumed"] * 3, "finished"]


def assert_each_round_has_its_clients(folder: RunFolder, records: list[RoundRecord]) -> None:
    by_client = list(folder.clients())
    assert [number for number, _ in by_client] == [record.round for record in records]
    for record, (_, by_name) in zip(records, by_client, strict=True):
        assert sorted(by_name) == ["client-0", "client-1"]
        assert sum(one.payload_bytes_up or 0 for one in by_name.values()) == record.payload_bytes_up


@pytest.mark.parametrize("moment", ["before the journal", "after the journal"])
def test_a_crash_between_average_and_record_loses_nothing(
    moment: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_of()
    undisturbed = deploy(hub, experiment)
    folder = RunFolder.create(tmp_path / "run", experiment, "digits")
    write = Journal.write

    def crashing(self: Journal, entry: JournalEntry) -> None:
        if entry.checkpoint.round != 3:
            write(self, entry)
            return
        if moment == "after the journal":
            write(self, entry)
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", crashing)
        with pytest.raises(CrashError):
            go_on(hub, experiment, folder, None)
    assert len(folder.rounds()) == 2
    assert [number for number, _ in folder.clients()] == [1, 2, 3]
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "local_st')  # a line that was torn
    with (folder.path / "clients.jsonl").open("a") as file:
        file.write('{"round":4,"clients":{"client-0":{"pay')
    go_on(hub, experiment, folder, None)
    assert [record.round for record in folder.rounds()] == list(range(1, ROUNDS + 1))
    assert_each_round_has_its_clients(folder, folder.rounds())
    model = linear_model(folder.path)
    assert model.equal(experiment.algorithm.evaluated(undisturbed.strategy.state).model)


def test_an_entry_comes_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path, experiment_of())
    assert journal.read() is None
    old, new = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    members = {"a": History(counted=5, digest=2**64 - 1), "b": History(counted=3, recentred=1, digest=7)}
    ledger = Ledger(members=members, averages={3: old, 5: new})
    ledger = replace(ledger, off_centre=True, recentrings=2, shift=old + 1, awaiting=frozenset({"b"}))
    rounded_off = Remainder.of(torch.tensor([1e-9, -2e-9]))
    put_out = {"c": "sent a change of the model of norm inf"}
    checkpoint = Checkpoint(
        round=5,
        state=ServerState(model=new),
        ledger=ledger,
        identities={"a": "0a", "b": "0b"},
        put_out=put_out,
        bits_up=1.5,
        rounded_off=rounded_off,
    )
    journal.write(JournalEntry(run="r", checkpoint=checkpoint, record=None))
    back = journal.read()
    assert back is not None
    assert back.run == "r"
    assert (back.checkpoint.round, back.checkpoint.bits_up) == (5, 1.5)
    assert (back.checkpoint.identities, back.checkpoint.put_out) == ({"a": "0a", "b": "0b"}, put_out)
    assert back.checkpoint.state.model.equal(new)
    assert back.checkpoint.rounded_off is not None
    assert back.checkpoint.rounded_off.tensor().equal(rounded_off.tensor())
    found = back.checkpoint.ledger
    assert found.members == members
    assert found.averages.keys() == {3, 5}
    assert found.averages[3].equal(old)
    assert found.averages[5].equal(new)
    assert found.shift is not None
    assert found.shift.equal(old + 1)
    assert (found.off_centre, found.recentrings, found.awaiting) == (True, 2, frozenset({"b"}))


def test_rounds_that_were_left_out_or_lost_are_no_reason_to_repeat_others(tmp_path: Path) -> None:
    """Lines are told by their rounds, not by their number: after a failure of the power some may be missing."""
    experiment = experiment_of()
    records = list(Simulation(experiment, load(experiment), CPU).rounds())
    folder = RunFolder.create(tmp_path / "run", experiment, "digits")
    for record in (records[0], records[2], records[3]):
        folder.add_round(record)
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "local_st')
    folder.go_back_to(records[3])
    assert [record.round for record in folder.rounds()] == [1, 3, 4]
    folder.go_back_to(records[5])
    assert [record.round for record in folder.rounds()] == [1, 3, 4, 6]
    folder.go_back_to(None)
    assert not folder.rounds()


def test_a_folder_with_an_experiment_of_the_users_is_not_written_over(tmp_path: Path) -> None:
    own = tmp_path / "experiment.yaml"
    own.write_text("# by hand\nname: mine\n")
    with pytest.raises(UserError, match=r"holds an experiment\.yaml that is no run's"):
        RunFolder.create(tmp_path, experiment_of(), "digits")
    assert own.read_text() == "# by hand\nname: mine\n"


def test_a_journal_that_is_foreign_or_damaged_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(round=0, state=ServerState(model=torch.ones(2)))
    Journal(tmp_path, experiment_of("fedavg")).write(JournalEntry(run="r", checkpoint=checkpoint, record=None))
    with pytest.raises(UserError, match="another experiment"):
        Journal(tmp_path, experiment_of()).read()
    (tmp_path / FILE).write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(UserError, match="is not a run's journal"):
        Journal(tmp_path, experiment_of()).read()


@pytest.mark.parametrize("precision", ["float32", "grid"])
@pytest.mark.parametrize("name", plugins.available(Algorithm.plugin_package))
def test_a_simulation_goes_on_with_the_same_bits(name: str, precision: Precision, tmp_path: Path) -> None:
    experiment = replace(experiment_of(name), codec=Codec(precision=precision))
    problem = load(experiment)
    calm, first = (Simulation(experiment, problem, CPU) for _ in range(2))
    expected = list(calm.rounds())
    records = [first.step() for _ in range(3)]
    saved = JournalEntry(
        run="r", checkpoint=first.checkpoint, record=records[-1], controls=first.controls, before=first.before
    )
    Journal(tmp_path, experiment).write(saved)
    second = Simulation(experiment, problem, CPU)
    entry = Journal(tmp_path, experiment).read()
    assert entry is not None
    assert entry.record == records[-1]
    second.go_on_from(entry.checkpoint, entry.controls, entry.before)
    records += second.rounds()
    assert second.kept().model.equal(calm.kept().model)
    timeless = [[replace(one, seconds=0.0, time="") for one in some] for some in (records, expected)]
    assert timeless[0] == timeless[1]


def test_simulate_goes_on_from_its_folder(tmp_path: Path) -> None:
    experiment = experiment_of()
    calm = Simulation(experiment, load(experiment), CPU)
    list(calm.rounds())
    folder = RunFolder.create(tmp_path / "run", experiment, "digits")
    killed = Simulation(experiment, load(experiment), CPU)
    recorder = Recorder(folder, experiment, show=lambda _: None, say=lambda _: None, run=SIMULATION)
    for _ in range(2):
        recorder.on_round(killed.step(), killed.checkpoint, killed.controls)
    for _ in range(2):  # since the last entry of its journal
        folder.add_round(killed.step())
    command = [sys.executable, "-m", "server", "simulate", "--resume", str(folder.path)]
    subprocess.run(command, check=True, timeout=60)
    assert linear_model(folder.path).equal(calm.kept().model)
    assert [record.round for record in folder.rounds()] == list(range(1, ROUNDS + 1))


@pytest.mark.slow
def test_ten_kills_at_any_moment_leave_the_result_as_it_was(tmp_path: Path) -> None:
    """Kill -9 of the server, with its clients, which leave with it; both go on from their files."""
    settings = ["--clients", "2", "--set", "rounds=400", "--set", "schedule.period=64"]
    subprocess.run(local("digits", *settings, "--output", str(tmp_path / "calm")), check=True, timeout=300)
    moments = random.Random(1)  # noqa: S311 - no secret
    begin = local("digits", *settings, "--output", str(tmp_path / "killed"))
    rounds = tmp_path / "killed" / "rounds.jsonl"
    seen = []
    for _ in range(10):
        before = lines_in(rounds)
        process = subprocess.Popen(begin if not rounds.exists() else local("--resume", str(tmp_path / "killed")))
        end = time.monotonic() + 60
        while lines_in(rounds) <= before + moments.randrange(1, 25) and time.monotonic() < end:
            time.sleep(moments.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen.append(lines_in(rounds))
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] < 400
    subprocess.run(local("--resume", str(tmp_path / "killed")), check=True, timeout=300)
    models = [linear_model(tmp_path / name) for name in ("calm", "killed")]
    assert models[0].equal(models[1])
    assert [json.loads(line)["round"] for line in rounds.read_text().splitlines()] == list(range(1, 401))
    finished = subprocess.run(
        local("--resume", str(tmp_path / "killed")), check=True, capture_output=True, text=True, timeout=60
    )
    assert "is finished, after 400 rounds" in finished.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "say which EXPERIMENT"),
        (["local", "--resume", "NOWHERE"], "there is no run"),
        (["local", "--resume", "RUN", "--set", "rounds=7"], "another experiment"),
        (["run", "femnist", "--resume", "RUN", "--insecure"], "another experiment"),
        (["local", "--resume", "RUN", "--output", "x"], "--output is for a new one"),
    ],
)
def test_a_wrong_resume_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "RUN", experiment_of(), "digits")
    command = [sys.executable, "-m", "server", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert finished.returncode == 2
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr
