"""Real processes over gRPC that are killed, lose their files, or find no room on their disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.errors import UserError
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.content import payload_of
from common.messages.flower import begin_run
from common.rounds.history import History
from common.rounds.ledger import Checkpoint, Ledger
from common.rounds.records import RoundRecord
from common.rounds.state import ServerState
from server.link.hub import Hub
from server.runs.run_folder import RunFolder
from strategies.flower.downlink import Downlink
from strategies.flower.membership import Membership
from strategies.flower.terms import Terms
from tests.harness.dying_client import AFTER_SAVING, MOMENTS
from tests.harness.models import linear_model
from tests.harness.processes import children_of, client_process, deploy, lines_in, local, wait_until
from tests.harness.small_disk import needs_root, small_disk
from tests.harness.witness import Witness

CLIENTS = 3
ROUNDS = 9
FILLER = "filler"


def experiment_of(rounds: int = ROUNDS) -> Experiment:
    return load_experiment("digits", [f"clients={CLIENTS}", f"rounds={rounds}", "schedule.period=4"])


class Federation:
    """A server in this process and clients in theirs, each with a folder of its own, audited after every round."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.hub = stack.enter_context(Hub("127.0.0.1:0"))
        self._started = 0

    def state(self, index: int) -> Path:
        return self.folder / f"state-{index}"

    def join(self, index: int, *doom: str, state: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a client."""
        self._started += 1
        log = self.folder / f"client-{index}-{self._started}.log"
        options = ["--insecure", "--partition", f"{index}/{CLIENTS}", "--state", str(state or self.state(index))]
        program = ("-m", "tests.harness.dying_client", *doom) if doom else ("-m", "client")
        return self._stack.enter_context(client_process(self.hub.address, *options, log=log, program=program))

    def run(
        self,
        experiment: Experiment,
        after: Callable[[RoundRecord], None] = lambda _: None,
        heard: Callable[[str], None] = lambda _: None,
        *,
        minimum_clients: int | None = None,
        evict_after_rounds: int | None = None,
    ) -> Witness:
        """Run an experiment, audited after every round."""
        terms = Terms(
            minimum_clients=minimum_clients,
            deadline_seconds=4,
            evict_after_rounds=evict_after_rounds,
            audit_every_rounds=1,
        )
        return deploy(self.hub, experiment, terms, after=after, heard=heard)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with ExitStack() as stack:
        yield Federation(tmp_path, stack)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    with ExitStack() as stack:
        calm = Federation(tmp_path_factory.mktemp("calm"), stack)
        for index in range(CLIENTS):
            calm.join(index)
        return deploy(calm.hub, experiment_of()).model


# One of the moments is in `make test`, and all of them without a network in test_faults.py.
@pytest.mark.parametrize(
    "moment",
    [AFTER_SAVING, *(pytest.param(one, marks=pytest.mark.slow) for one in MOMENTS if one != AFTER_SAVING)],
)
def test_a_client_killed_at_any_moment_of_a_round_changes_nothing(
    moment: str, federation: Federation, undisturbed: Tensor
) -> None:
    victim = federation.join(1, moment, "4")
    for index in (0, 2):
        federation.join(index)

    def come_back() -> None:
        assert victim.wait() == -signal.SIGKILL
        federation.join(1)

    threading.Thread(target=come_back, daemon=True).start()
    run = federation.run(experiment_of())
    assert run.model.equal(undisturbed)
    assert victim.returncode == -signal.SIGKILL
    assert run.counted == [CLIENTS] * ROUNDS
    assert len(run.audits) >= ROUNDS - 1  # one may fall into the time in which the client is away
    assert max(run.audits) < 1e-5


@pytest.mark.slow
def test_a_client_whose_folder_was_deleted_is_re_centred(federation: Federation) -> None:
    processes = [federation.join(index) for index in range(CLIENTS)]

    def lose_it(record: RoundRecord) -> None:
        if record.round == 4:
            processes[1].terminate()  # it takes leave; else its name would be free only when it is found dead
            processes[1].wait(20)
            shutil.rmtree(federation.state(1))
            federation.join(1)

    run = federation.run(experiment_of(12), lose_it)
    assert sum("client-1 has lost its control variate" in text for text in run.said) == 1
    assert run.counted == [CLIENTS] * 12
    assert run.records[-1].control_sum_norm is not None
    assert max(run.audits) < 1e-5


@pytest.mark.slow
def test_a_client_gone_for_good_is_given_up(federation: Federation) -> None:
    processes = [federation.join(index) for index in range(CLIENTS)]

    def leave(record: RoundRecord) -> None:
        if record.round == 4:
            processes[1].kill()

    run = federation.run(experiment_of(12), leave, minimum_clients=2, evict_after_rounds=3)
    assert sum("client-1 was not counted in 3 rounds" in text for text in run.said) == 1
    assert run.counted[4:] == [2] * 8
    assert run.records[-1].control_sum_norm is not None
    assert max(run.audits) < 1e-5


@pytest.mark.slow
def test_the_process_that_hosts_the_link_is_killed_in_mid_round_and_the_run_finishes(tmp_path: Path) -> None:
    settings = ["--clients", "2", "--set", "rounds=60", "--set", "schedule.period=64"]
    subprocess.run(local("digits", *settings, "--output", str(tmp_path / "calm")), check=True, timeout=300)
    log = tmp_path / "killed.log"
    rounds = tmp_path / "killed" / "rounds.jsonl"
    with log.open("wb") as file:
        program = subprocess.Popen(local("digits", *settings, "--output", str(rounds.parent)), stdout=file, stderr=file)
    try:
        for number in (5, 20, 40):
            wait_until(lambda: lines_in(rounds) >= number)  # noqa: B023 - called at once
            (child,) = children_of(program.pid)
            os.kill(child, signal.SIGKILL)
        assert program.wait(200) == 0
    finally:
        program.kill()
    assert log.read_text().count("the server was killed (SIGKILL); it goes on from its journal") == 3
    kinds = [json.loads(line)["kind"] for line in (rounds.parent / "events.jsonl").read_text().splitlines()]
    told = [kind for kind in kinds if kind in ("started", "server killed", "resumed", "finished")]
    assert told == ["started", *["server killed", "resumed"] * 3, "finished"]
    models = [linear_model(tmp_path / name) for name in ("calm", "killed")]
    assert models[0].equal(models[1])


def test_a_server_that_is_killed_before_it_gets_anywhere_gives_up(tmp_path: Path) -> None:
    """It finds the same end every time: to go on trying would help nobody."""
    (tmp_path / "rounds.jsonl").touch()  # a run was begun
    program = (
        "import os, signal, sys; from pathlib import Path; from server.deploy.guard import Guard\n"
        f"guard = Guard(); guard.stand(print); guard.announce(Path({str(tmp_path)!r}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 128 + signal.SIGKILL
    assert finished.stdout.count("it goes on from its journal") == 3
    assert "ended 4 times without a round in between; the last time it was killed (SIGKILL)" in finished.stdout
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [one["kind"] for one in events] == ["server killed"] * 4
    assert "ended 4 times" in events[-1]["text"]


FAILING = """
import sys
from pathlib import Path
from common.errors import UserError
from common.program.start import run_program
from server.deploy.guard import Guard

def work():
    guard = Guard()
    guard.stand(print)
    guard.announce(Path(sys.argv[1]))
    attempts = Path(sys.argv[1], "attempts")
    attempts.open("a").write("x")
    if len(attempts.read_text()) < 3:
        raise eval(sys.argv[2])

run_program(work)
"""


@pytest.mark.parametrize(
    ("error", "attempts", "code"), [("OSError(5, 'broken')", 3, 0), ("UserError('mend it')", 1, 2)]
)
def test_a_server_that_fails_by_an_error_nobody_has_thought_of_goes_on(
    error: str, attempts: int, code: int, tmp_path: Path
) -> None:
    """What the user can mend is no reason to try again."""
    (tmp_path / "rounds.jsonl").touch()  # a run was begun
    command = [sys.executable, "-c", FAILING, str(tmp_path), error]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == code
    assert len((tmp_path / "attempts").read_text()) == attempts
    said = finished.stdout.count("the server failed by an unexpected error, which is told above; it goes on")
    assert said == attempts - 1
    assert finished.stderr.count("error: an unexpected OSError, which is a fault of this program") == attempts - 1


def test_two_processes_cannot_run_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.runs.run_folder.LOCK_SECONDS", 0.2)
    folder = RunFolder.create(tmp_path / "run", experiment_of(), "digits")
    with folder.locked(), pytest.raises(UserError, match="another process is at work"), RunFolder(folder.path).locked():
        pass
    with RunFolder(folder.path).locked():
        pass


def fill(folder: Path) -> Path:
    """Take all the room that is left."""
    filler = folder / FILLER
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 1024):
                pass
        except OSError:
            return filler
    raise AssertionError("the disk has no end")


class FullDisk:
    """A disk for temporary files that is full, until somebody says so."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self.said: list[str] = []
        self._filler: Path | None = None

    def fill(self) -> None:
        self._filler = fill(self.disk)

    def say(self, text: str) -> None:
        self.said.append(text)
        if self._filler is not None:
            self._filler.unlink(missing_ok=True)


@needs_root
def test_evaluations_and_re_centrings_wait_for_room_for_their_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them packs a vector of its own, of 1.6 MB here, into such a file."""
    begin_run()
    experiment = load_experiment("digits", ["algorithm.name=proxskip", "clients=1"])
    large = torch.randn(400_000, generator=torch.Generator().manual_seed(0))
    known = {"client-0": History(counted=1)}
    ledger = Ledger(members=known, recentrings=1, shift=large, awaiting=frozenset({"client-0"}))
    monkeypatch.setattr("common.storage.disk.FIRST_RETRY_SECONDS", 0.01)
    with small_disk(tmp_path / "disk", 8192) as folder:
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        disk = FullDisk(folder)
        downlink = Downlink(experiment, Checkpoint(round=1, state=ServerState(model=large)), disk.say)
        members = Membership(
            experiment, Terms(), Checkpoint(round=1, state=downlink.now.state, ledger=ledger), disk.say
        )
        members.roster.nodes["client-0"] = 1
        disk.fill()
        evaluations = downlink.evaluations(1, {"client-0": 1})
        disk.fill()
        recentrings = dict(members._recentrings())
        for messages in (evaluations, recentrings):
            assert len(payload_of(messages["client-0"].content)) > 1 << 20
    assert len(disk.said) == 2
    assert all("No space left" in text for text in disk.said)


@needs_root
def test_a_client_whose_disk_is_full_goes_on_when_there_is_room(
    federation: Federation, undisturbed: Tensor, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        processes = [federation.join(0), federation.join(1, state=disk / "state"), federation.join(2)]
        wait_until((disk / "state" / "client-1.identity").exists)
        fill(disk)  # before there is room for its memory, which it keeps from then on

        def make_room(said: str) -> None:
            if "its disk is full" in said:
                (disk / FILLER).unlink()

        run = federation.run(experiment_of(), heard=make_room)
        assert any(re.search(r"round 1: only 2 of .*client-1: its disk is full", said) for said in run.said)
        assert run.model.equal(undisturbed)
        assert max(run.audits) < 1e-5
        assert all(process.poll() is None for process in processes)
        processes[1].terminate()
        processes[1].wait(20)


@needs_root
@pytest.mark.slow
def test_a_server_whose_disk_is_full_goes_on_when_there_is_room(tmp_path: Path) -> None:
    settings = ["--clients", "2", "--set", "rounds=30", "--set", "schedule.period=64"]
    subprocess.run(local("digits", *settings, "--output", str(tmp_path / "calm")), check=True, timeout=300)
    with small_disk(tmp_path / "disk", 512) as disk:
        log, run = tmp_path / "full.log", disk / "run"
        with log.open("wb") as file:
            program = subprocess.Popen(local("digits", *settings, "--output", str(run)), stdout=file, stderr=file)
        try:
            rounds = run / "rounds.jsonl"
            wait_until(lambda: lines_in(rounds) >= 5)
            filler = fill(disk)
            wait_until(lambda: "No space left" in log.read_text())
            before = rounds.read_text()
            assert before.endswith("\n")
            filler.unlink()
            assert program.wait(120) == 0
        finally:
            program.kill()
        assert "Traceback" not in log.read_text()
        models = [linear_model(folder) for folder in (tmp_path / "calm", run)]
        assert models[0].equal(models[1])
