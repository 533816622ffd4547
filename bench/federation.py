"""Seconds a round over gRPC, against Flower's own programs in the same run, and what a large model costs in memory."""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Ratio
from bench.payload import PayloadProblem
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.flower import quiet_flower
from common.messages.messages import Run
from common.program.malloc import keep_freed_memory
from server.deploy.local_clients import leaving
from server.link.hub import Hub
from server.runs.run_folder import RunFolder
from tests.harness.witness import Witness

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parent.parent
EXPERIMENT = Path(__file__).with_name("payload.yaml")
VALUES = {"4 kB": 1_000, "1 MB": 250_000, "5.8 MB": 1_450_000, "45 MB": 11_250_000}
STOCK_ROUNDS = 3


@dataclass(frozen=True)
class Case:
    """So many nodes, dealt out to so many processes, with a model of such a size."""

    nodes: int
    processes: int
    payload: str
    rounds: int

    @property
    def experiment(self) -> Experiment:
        """Return the experiment of this case."""
        settings = [f"clients={self.nodes}", f"task.size={VALUES[self.payload]}", f"rounds={self.rounds}"]
        return load_experiment(str(EXPERIMENT), settings)


def run() -> list[Ratio]:
    """Measure; the stock way takes seconds a round, so it is measured once, and the rest against it."""
    stock = _stock_seconds()
    print(f"stock SuperLink and SuperNodes, 2 nodes x 4 kB: {stock:.2f} s a round")
    ratios = []
    for case, limit in (  # limits in seconds are given relative to the 7 s that the stock way takes
        (Case(2, 2, "4 kB", 200), 1 / 80),
        (Case(2, 2, "1 MB", 50), None),
        (Case(2, 2, "5.8 MB", 30), None),
        (Case(2, 2, "45 MB", 12), 1.2 / 7),
        (Case(8, 2, "45 MB", 4), None),
        (Case(16, 2, "4 kB", 50), None),
        (Case(50, 2, "4 kB", 30), 1.5 / 7),
    ):
        seconds, copies, client_copies = in_a_process_of_its_own(case)
        name = f"{case.nodes} nodes x {case.payload}"
        print(f"{name}: {seconds:.4f} s a round")
        ratios.append(Ratio(f"round / stock round of 2 x 4 kB, {name}", seconds / stock, limit))
        if case.payload == "45 MB":
            ratios.append(Ratio(f"server memory in models, {name}", copies, 3.0 if case.nodes == 2 else None))
            ratios.append(Ratio(f"all memory of a client process in models, {name}", client_copies, None))
    return ratios


def in_a_process_of_its_own(case: Case) -> tuple[float, float, float]:
    """Measure a case where nothing is in memory of what other cases left there."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start) as process:
        return process.submit(_ours, case).result()


def _start() -> None:
    quiet_flower()
    keep_freed_memory()


def _ours(case: Case) -> tuple[float, float, float]:
    """Return the median seconds of a round, the most that the server ever grew by and all that a client has, in models.

    It is counted from before there was a model, and is all that is resident: the page cache of temporary files is not,
    unless a file is mapped into memory, as the model is while it is read.
    """
    experiment = case.experiment
    before = _resident_bytes(os.getpid())
    witness = Witness(experiment, problem=PayloadProblem(case.nodes, VALUES[case.payload]))
    with tempfile.TemporaryDirectory(dir=".") as state, Hub("127.0.0.1:0") as hub, ExitStack() as stack:
        clients = [stack.enter_context(_clients(hub.address, case, place, state)) for place in range(case.processes)]
        with hub.run(Run(experiment=experiment, name="bench")) as grid:
            witness.run(grid)
        model = 4 * VALUES[case.payload]
        grown = (_peak_bytes(os.getpid()) - before) / model
        client_peak = _peak_bytes(clients[0].pid) / model
    return statistics.median(record.seconds for record in witness.records[1:]), grown, client_peak


@contextmanager
def _clients(address: str, case: Case, place: int, state: str) -> Iterator[subprocess.Popen[bytes]]:
    each = case.nodes // case.processes
    parts = f"{place * each}-{(place + 1) * each - 1}/{case.nodes}"
    command = [sys.executable, "-m", "client", "join", address, "--insecure", "--threads", "1", "--partitions", parts]
    command += ["--state", state]
    with _process(command, dict(os.environ)) as process:
        yield process


def _stock_seconds() -> float:
    """Return the median seconds of a round with flower-superlink, two flower-supernodes and `flwr run`."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        control, hub = _free_port(), f"127.0.0.1:{_free_port()}"
        environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        environment |= {"FLWR_HOME": str(folder), "PATH": f"{BIN}:{os.environ['PATH']}"}
        connection = (
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{control}"\ninsecure = true\n'
        )
        (folder / "config.toml").write_text(connection)
        here = ("--insecure", "--host", "127.0.0.1")
        link = ("--port", control, "--hub-api-address", hub, "--disable-runtime-dependency-installation")
        stack.enter_context(_process([f"{BIN}/flower-superlink", *here, *link], environment))
        time.sleep(5)
        for index in range(2):
            node_config = f'partition="{index}/2" state="{folder}"'
            node = ("--superlink", hub, "--port", _free_port(), "--node-config", node_config)
            stack.enter_context(_process([f"{BIN}/flower-supernode", *here, *node], environment))
        configuration = f'experiment="{EXPERIMENT}" settings="rounds={STOCK_ROUNDS + 1}" output="{folder / "run"}"'
        stack.enter_context(_process([f"{BIN}/flwr", "run", ".", "here", "--run-config", configuration], environment))
        while not (folder / "run" / "model.safetensors").exists():
            time.sleep(0.5)
        return statistics.median(record.seconds for record in RunFolder(folder / "run").rounds()[1:])


@contextmanager
def _process(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment, cwd=REPOSITORY)  # noqa: S603
    with leaving(process, 20):
        yield process


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _resident_bytes(pid: int) -> int:
    return _status_bytes(pid, "VmRSS")


def _peak_bytes(pid: int) -> int:
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {key} in /proc/{pid}/status")


def _quiet(_: str) -> None:
    """Say nothing."""
