"""Devices differ: what a client may take of its machine and of its link, and what it leaves out."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from client import node
from client.__main__ import app as client_app
from client.part import Part
from client.round import Participant, Station
from client.stream import Pace
from common.codec.payload import decode_upload
from common.codec.places import entries_of
from common.codec.vector import Known
from common.errors import UserError
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.learning.objectives.network import NetworkObjective
from common.learning.own_code import is_out_of_memory
from common.messages.messages import Order
from common.program.device import deal_out, devices_here
from common.rounds.history import History
from common.rounds.state import ServerState
from server.link.hub import Hub
from strategies.hybrid import Hybrid
from tests.harness.disk import waits_for_the_disk
from tests.harness.own_models import Points
from tests.harness.pages import REPOSITORY
from tests.harness.processes import deploy

SETTINGS = ["clients=2", "rounds=3", "schedule.period=4", "algorithm.density=0.1"]
CPU = torch.device("cpu")


def participant(algorithm: str, local_density: float | None) -> Participant:
    experiment = load_experiment("digits", [*SETTINGS, f"algorithm.name={algorithm}"])
    station = Station(
        name="client-0", part=Part(0, 2), data=None, device=CPU, state_folder=None, local_density=local_density
    )
    return Participant.join(experiment, station, "run")


def uploaded(client: Participant, experiment: Experiment) -> torch.Tensor:
    state = ServerState(model=torch.zeros(650))
    order = Order(plan=experiment.plan(2), history=History(), state=state)
    known = Known(given=entries_of(state.model))
    return decode_upload(client.train(order).upload, state, known=known).model.dense()


def test_a_device_holds_in_its_steps_what_it_can_and_uploads_as_the_others() -> None:
    experiment = load_experiment("digits", [*SETTINGS, "algorithm.name=hybrid"])
    uploads = {density: uploaded(participant("hybrid", density), experiment) for density in (0.15, 0.9, None)}
    assert all(int(one.count_nonzero()) <= 65 for one in uploads.values())
    assert not uploads[0.15].equal(uploads[0.9])
    assert isinstance(experiment.algorithm, Hybrid)
    as_declared = uploaded(participant("hybrid", experiment.algorithm.local_density), experiment)
    assert as_declared.equal(uploads[None])


@pytest.mark.parametrize(
    ("algorithm", "density", "reason"),
    [
        ("sparse_proxskip", 0.3, "the server runs sparse_proxskip, whose local steps cannot be pruned more"),
        ("hybrid", 0.0, "--local-density 0: local_density = 0.0 must be at least density = 0.1"),
        ("hybrid", 0.05, "--local-density 0.05: local_density = 0.05 must be at least density = 0.1"),
    ],
)
def test_a_local_density_that_cannot_be_is_refused(algorithm: str, density: float, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        participant(algorithm, density)


@pytest.mark.parametrize(("asked", "allowed", "readers"), [(4, 1, 1), (4, 0, 0), (1, 3, 1), (4, None, 4)])
def test_an_owner_says_how_many_processes_read_ahead(
    asked: int, allowed: int | None, readers: int, tmp_path: Path
) -> None:
    experiment = replace(load_experiment("digits", SETTINGS), task=Points(loader_workers=asked))
    station = Station(name="a", part=None, data=tmp_path, device=CPU, state_folder=None, loader_workers=allowed)
    objective = Participant.join(experiment, station, "run")._objective
    assert isinstance(objective, NetworkObjective)
    assert objective.task.loader_workers == readers


def output_of(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_uploads_keep_their_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(Pace(None).keep(10**9))
    assert not slept
    pace = Pace(80.0)  # 10 bytes a millisecond
    for _ in range(3):
        asyncio.run(pace.keep(1000))
    assert slept == pytest.approx([0.1] * 3)
    assert pace.piece_bytes == 10_000  # a second's worth
    assert Pace(1.0).piece_bytes == 1_000  # a server takes no less


@contextmanager
def signals_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def take_part(state: Path, *options: str) -> None:
    """Be a client in this process, by its command line, for the two rounds of a run that ends with SIGTERM."""

    def run_and_end() -> None:
        try:
            deploy(hub, load_experiment("digits", ["clients=1", "rounds=2"]))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with signals_as_they_were(), Hub("127.0.0.1:0") as hub:
        server = threading.Thread(target=run_and_end)
        server.start()
        arguments = ["join", hub.address, "--insecure", "--partition", "0/1", "--state", str(state), *options]
        client_app(arguments, standalone_mode=False)
        server.join()


def test_what_a_client_may_take_is_what_its_options_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits: list[tuple[int, int]] = []
    paces: list[float | None] = []
    on_disk = waits_for_the_disk(monkeypatch)

    class RecordedPace(Pace):
        def __init__(self, kilobits_a_second: float | None) -> None:
            paces.append(kilobits_a_second)
            super().__init__(kilobits_a_second)

    monkeypatch.setattr("server.link.hub.most_connections", lambda: 1000)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.append((kind, limit[0])))
    monkeypatch.setattr(node, "Pace", RecordedPace)
    take_part(tmp_path / "as it is")
    assert (limits, paces) == ([], [None])
    assert len(on_disk) == 2  # of two rounds
    take_part(tmp_path / "less", "--memory-limit", "5000", "--max-upload-kbps", "1e6", "--forget-on-power-loss")
    assert limits == [(resource.RLIMIT_DATA, 5000 << 20)]
    assert paces == [None, 1e6]
    assert len(on_disk) == 2


def test_a_process_takes_no_more_memory_than_it_may() -> None:
    program = (
        "from client.limits import limit_memory; limit_memory(300); import numpy\n"
        "try: numpy.ones(10**9)\n"
        "except MemoryError: print('no more than it may')"
    )
    assert output_of(program) == "no more than it may"


@pytest.mark.parametrize("allocate", [lambda: torch.empty(10**15), lambda: bytearray(10**15)])
def test_too_little_memory_is_told_from_other_failures(allocate: Callable[[], object]) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as failure:
        allocate()
    assert is_out_of_memory(failure.value)
    assert not is_out_of_memory(RuntimeError("something else"))


def test_a_client_imports_nothing_of_the_server_nor_of_data_science() -> None:
    program = (
        "import sys, client.__main__, client.join, common.tasks.tabular\n"
        "heavy = {'server', 'matplotlib', 'sklearn', 'scipy', 'pandas', 'pyarrow', 'torchvision', 'PIL', 'numba'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    assert output_of(program) == "[]"


TWO_GPUS = ["cpu", "cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("devices", "here", "dealt"),
    [
        ("auto", TWO_GPUS, ["cuda:0", "cuda:1", "cuda:0"]),
        ("auto", ["cpu"], ["cpu", "cpu", "cpu"]),
        ("auto", ["cpu", "mps"], ["cpu", "cpu", "cpu"]),
        ("cpu", TWO_GPUS, ["cpu", "cpu", "cpu"]),
        ("cuda:1", TWO_GPUS, ["cuda:1", "cuda:1", "cuda:1"]),
        ("cuda:1, cuda:0", TWO_GPUS, ["cuda:1", "cuda:0", "cuda:1"]),
        ("cuda:0,cuda:0,cpu", TWO_GPUS, ["cuda:0", "cuda:0", "cpu"]),
    ],
)
def test_devices_are_dealt_out_in_turns(devices: str, here: list[str], dealt: list[str]) -> None:
    assert deal_out(devices, 3, here) == dealt


@pytest.mark.parametrize("devices", ["cuda:2", "cuda:0,cuda:2", "cuda", "cuda:0,", "", "toaster"])
def test_a_device_that_is_not_here_is_not_dealt_out(devices: str) -> None:
    with pytest.raises(
        UserError, match=r"^--devices: '[^']*' is not on this machine; torch finds cpu, cuda:0, cuda:1$"
    ):
        deal_out(devices, 3, TWO_GPUS)


def test_what_is_here_can_be_used() -> None:
    for name in devices_here():
        assert torch.ones(2, device=name).sum().item() == 2


def test_the_compose_file_for_gpus_gives_each_client_one_of_its_own() -> None:
    folder = REPOSITORY / "docker"
    plain, gpus = (
        yaml.safe_load((folder / name).read_text())["services"] for name in ("compose.yaml", "compose.gpu.yaml")
    )
    assert gpus.keys() == {name for name in plain if name.startswith("client-")}
    for name, own in gpus.items():
        assert own["command"] == plain[name]["command"].replace("--threads 1", "--device cuda:0")
    held = [own["deploy"]["resources"]["reservations"]["devices"] for own in gpus.values()]
    assert [one["device_ids"] for (one,) in held] == [["0"], ["1"], ["2"]]
    assert all(one["capabilities"] == ["gpu"] for (one,) in held)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel does not tell")
def test_a_clients_memory_is_its_own_and_not_of_what_started_it() -> None:
    large = bytearray(1000 << 20)
    code = "import torch; from client.limits import peak_memory; print(peak_memory(torch.device('cpu')).memory_mb)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert 10 < float(told.stdout) < len(large) >> 20
