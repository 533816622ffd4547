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
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from bench import bare_stream
from bench.measure import Ratio, median_seconds
from bench.payload import TASK, PayloadProblem
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.flower import quiet_flower
from common.messages.messages import Run
from common.program.malloc import keep_freed_memory
from common.rounds.outliers import Change
from server.deploy.local_clients import leaving
from server.keys.folder import Keys
from server.link.hub import Hub
from server.runs.run_folder import RunFolder
from tests.harness.witness import Witness

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parent.parent
EXPERIMENT = Path(__file__).with_name("payload.yaml")
VALUES = {"4 kB": 1_000, "1 MB": 250_000, "5.8 MB": 1_450_000, "45 MB": 11_250_000}
STOCK_ROUNDS = 3
PROCESSES = 2  # that hold the clients

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Case:
    """So many nodes, dealt out to so many processes, with a model of such a size."""

    nodes: int
    payload: str
    rounds: int
    with_tls: bool = False

    @property
    def name(self) -> str:
        """Return what is measured."""
        return f"{self.nodes} x {self.payload}{', mutual TLS' if self.with_tls else ''}"

    @property
    def experiment(self) -> Experiment:
        """Return the experiment of this case."""
        settings = [f"clients={self.nodes}", f"task.size={VALUES[self.payload]}", f"rounds={self.rounds}"]
        return load_experiment(str(EXPERIMENT), settings)


# The most that a round may take, in rounds of bare streams: 4 ms to 0.7, 40 to 4.3, 0.7 s to 92 ms, 0.5 s to 0.14.
CASES = (
    (Case(2, "4 kB", 300), 4 / 0.7),
    (Case(50, "4 kB", 50), 40 / 4.3),
    (Case(1000, "4 kB", 10), 700 / 92),
    (Case(2, "1 MB", 50), None),
    (Case(2, "45 MB", 12), 0.5 / 0.14),
    (Case(8, "45 MB", 4), None),
)
MOST_FOR_TLS = 4 / 3
MOST_FOR_CHECKS = 0.03
PART_VALUES = 1 << 16  # that an upload is read in
MOST_FOR_THOUSAND_MB = 100.0


def run() -> list[Ratio]:
    """Measure our rounds, with clients that wait for their disk, and bare streams and the stock way beside them."""
    stock = _stock_seconds()
    print(f"stock SuperLink and SuperNodes, 2 x 4 kB: {stock:.2f} s a round")
    ratios, grown_mb = [], {}
    for case, limit in CASES:
        ratio, measured = _against_bare_streams(case, limit)
        ratios.append(ratio)
        grown_mb[case.name] = measured.server_bytes / 1e6
        if case.payload == "45 MB":
            model = 4 * VALUES[case.payload]
            limit = 3.0 if case.nodes == 2 else None
            ratios.append(Ratio(f"server memory in models, {case.name}", measured.server_bytes / model, limit))
            ratios.append(Ratio(f"memory of a client in models, {case.name}", measured.client_bytes / model, None))
            checks = case.nodes * _check_seconds(VALUES[case.payload])
            ratios.append(Ratio(f"checks of norms / round, {case.name}", checks / measured.seconds, MOST_FOR_CHECKS))
        if case.nodes == 2 and case.payload == "4 kB":
            ratios.append(Ratio(f"round / stock round, {case.name}", measured.seconds / stock, None))
        if case.payload in ("4 kB", "45 MB") and case.nodes < 8:
            ratios.append(_with_tls(case, measured.seconds))
    more_mb = grown_mb["1000 x 4 kB"] - grown_mb["2 x 4 kB"]
    ratios.append(Ratio("MB of server memory, 1000 x 4 kB less 2 x 4 kB", more_mb, MOST_FOR_THOUSAND_MB))
    return ratios


def _against_bare_streams(case: Case, limit: float | None) -> tuple[Ratio, Measured]:
    measured, bare = in_a_process(_ours, case), in_a_process(_bare, case)
    print(f"{case.name}: {1000 * measured.seconds:.2f} ms a round, bare streams {1000 * bare:.2f} ms")
    return Ratio(f"round / round of bare streams, {case.name}", measured.seconds / bare, limit), measured


def _with_tls(case: Case, seconds_without: float) -> Ratio:
    with_tls = replace(case, with_tls=True)
    _, measured = _against_bare_streams(with_tls, None)
    return Ratio(f"with mutual TLS / without, {case.name}", measured.seconds / seconds_without, MOST_FOR_TLS)


def _bare(case: Case) -> float:
    with tempfile.TemporaryDirectory() as folder:
        keys = _keys(Path(folder), 1) if case.with_tls else None
        return bare_stream.seconds_a_round(case.nodes, 4 * VALUES[case.payload], case.rounds, keys)


def _check_seconds(size: int) -> float:
    """Return how long it takes to measure how far a dense upload is from what was sent."""
    sent = PayloadProblem(1, size).initial_state()
    upload = (sent.model + 1.0).numpy()

    def see_all() -> None:
        change = Change(sent)
        for place in range(0, size, PART_VALUES):
            change.see("model", slice(place, place + PART_VALUES), upload[place : place + PART_VALUES])

    return median_seconds({"checks": see_all}, 9)["checks"]


def _keys(folder: Path, clients: int) -> Keys:
    keys = Keys.init(folder, ["127.0.0.1"], 9092)
    for index in range(clients):
        keys.add(f"client-{index}")
    return keys


@dataclass(frozen=True)
class Measured:
    """The median seconds of a round, the most that the server ever grew by, all that a client process has."""

    seconds: float
    server_bytes: int
    client_bytes: int


def in_a_process(measure: Callable[[Case], _Result], case: Case) -> _Result:
    """Measure a case where nothing is in memory of what other cases left there."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start) as process:
        return process.submit(measure, case).result()


def _start() -> None:
    quiet_flower()
    keep_freed_memory()


def _ours(case: Case) -> Measured:
    """Run a case; memory is counted from before there was a model.

    It is all that is resident: the page cache of temporary files is not, unless a file is mapped into memory, as the
    model is while it is read.
    """
    experiment = case.experiment
    before = _resident_bytes(os.getpid())
    witness = Witness(experiment, problem=PayloadProblem(case.nodes, VALUES[case.payload]))
    with tempfile.TemporaryDirectory(dir=".") as name, ExitStack() as stack:  # on a disk, as /tmp may be none
        folder = Path(name)
        keys = _keys(folder / "keys", case.nodes) if case.with_tls else None
        hub = stack.enter_context(Hub("127.0.0.1:0", keys))
        clients = [stack.enter_context(clients_at(hub.address, case, place, folder)) for place in range(PROCESSES)]
        with hub.run(Run(experiment=experiment, name="bench")) as grid:
            witness.run(grid)
        grown, of_client = _peak_bytes(os.getpid()) - before, _peak_bytes(clients[0].pid)
    return Measured(statistics.median(record.seconds for record in witness.records[1:]), grown, of_client)


@contextmanager
def clients_at(address: str, case: Case, place: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with its share of the clients, which wait for their disk."""
    each = case.nodes // PROCESSES
    parts = f"{place * each}-{(place + 1) * each - 1}/{case.nodes}"
    bundles = folder / "keys" / "bundles"
    only = str(bundles / f"client-{place}.join") if each == 1 else str(bundles)
    target = [only, "--server", address] if case.with_tls else [address, "--insecure"]
    options = ["--threads", "1", "--partitions", parts, "--state", str(folder / "state"), "--allow-task", TASK]
    with _process([sys.executable, "-m", "client", "join", *target, *options], dict(os.environ)) as process:
        yield process


def _stock_seconds() -> float:
    """Return the median seconds of a round with flower-superlink, two flower-supernodes and `flwr run`."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        control = _free_port()
        environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        environment |= {"FLWR_HOME": str(folder), "PATH": f"{BIN}:{os.environ['PATH']}"}
        connection = (
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{control}"\ninsecure = true\n'
        )
        (folder / "config.toml").write_text(connection)
        here = ("--insecure", "--host", "127.0.0.1")
        link = ["--port", control, "--disable-runtime-dependency-installation"]
        for_nodes = f"127.0.0.1:{control}"
        if metadata.version("flwr").startswith("1.39."):  # later ones have one port for all
            for_nodes = f"127.0.0.1:{_free_port()}"
            link += ["--fleet-api-address", for_nodes]
        stack.enter_context(_process([f"{BIN}/flower-superlink", *here, *link], environment))
        time.sleep(5)
        for index in range(2):
            node_config = f'partition="{index}/2" state="{folder}" allow-task="{TASK}"'
            node = ("--superlink", for_nodes, "--port", _free_port(), "--node-config", node_config)
            stack.enter_context(_process([f"{BIN}/flower-supernode", *here, *node], environment))
        settings = f'settings = "rounds={STOCK_ROUNDS + 1}"\noutput = "{folder / "run"}"\n'
        configuration = folder / "run.toml"  # nodes take the text of an experiment, not its path
        configuration.write_text(f'experiment = """\n{EXPERIMENT.read_text()}"""\n{settings}')
        run = [f"{BIN}/flwr", "run", ".", "here", "--run-config", str(configuration)]
        stack.enter_context(_process(run, environment))
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
