"""Real processes for tests: clients, runs on a hub of them, and what becomes of them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from common.experiment.experiment import Experiment
from common.messages.messages import Run
from common.rounds.records import RoundRecord
from server.deploy.local_clients import leaving
from server.link.hub import Hub
from strategies.flower.terms import Terms
from tests.harness.witness import Witness


@contextmanager
def client_process(
    *arguments: str, log: Path, program: Sequence[str] = ("-m", "client"), cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `proxskip-client join ...`; it is gone when the context ends."""
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, *program, "join", *arguments], stdout=file, stderr=file, cwd=cwd)
    with leaving(process, 20):
        yield process


@contextmanager
def clients(address: str, count: int, logs: Path, *arguments: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start several client processes, each with its part of the data."""
    with ExitStack() as stack:
        processes = []
        for index in range(count):
            options = (address, "--insecure", "--partition", f"{index}/{count}", *arguments)
            processes.append(stack.enter_context(client_process(*options, log=logs / f"client-{index}.log")))
        yield processes
        for process in processes:  # all at once, so that they leave at the same time
            process.terminate()


def deploy(
    hub: Hub,
    experiment: Experiment,
    terms: Terms | None = None,
    *,
    after: Callable[[RoundRecord], None] = lambda _: None,
    heard: Callable[[str], None] = lambda _: None,
) -> Witness:
    """Run an experiment on whatever clients are there."""
    witness = Witness(experiment, terms, after=after, heard=heard)
    with hub.run(Run(experiment=experiment, name=uuid4().hex)) as grid:
        return witness.run(grid)


def proxskip_server(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    command = [sys.executable, "-m", "server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, check=False)


def local(*arguments: str) -> list[str]:
    """Return the command of a whole federation on this machine."""
    return [sys.executable, "-m", "server", "local", *arguments]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def lines_in(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False


def stat_of(pid: int) -> list[str]:
    """Return state, parent and so on of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def children_of(pid: int) -> set[int]:
    everybody = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return {one for one in everybody if stat_of(one)[1:2] == [str(pid)]}


def descendants_of(pid: int) -> set[int]:
    children = children_of(pid)
    return children.union(*(descendants_of(child) for child in children))


def alive(pid: int) -> bool:
    return stat_of(pid)[:1] not in ([], ["Z"])
