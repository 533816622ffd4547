"""Client processes for tests, and runs on a fleet of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import torch

from common.experiment.experiment import Experiment
from common.learning.data import DataFolder
from common.learning.task import Problem
from common.messages.messages import Run, pack_run
from common.rounds.records import RoundRecord
from common.rounds.state import ServerState
from server.deploy.local import leaving
from server.link.fleet import Fleet
from strategies.flower.strategy import AlgorithmStrategy

CPU = torch.device("cpu")


@contextmanager
def client_process(
    *arguments: str, log: Path, program: Sequence[str] = ("-m", "client")
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `proxskip-client join ...`; it is gone when the context ends."""
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, *program, "join", *arguments], stdout=file, stderr=file)
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


def load(experiment: Experiment) -> Problem:
    return experiment.load(DataFolder.choose(None), CPU)


def deploy(fleet: Fleet, experiment: Experiment) -> tuple[ServerState, list[RoundRecord]]:
    """Run an experiment on whatever clients are there."""
    records: list[RoundRecord] = []
    strategy = AlgorithmStrategy(experiment, load(experiment).initial_state(), on_round=records.append)
    with fleet.run(pack_run(Run(experiment=experiment, name=uuid4().hex))) as grid:
        strategy.start(grid, strategy.initial_arrays, num_rounds=experiment.rounds, timeout=120)
    return strategy.state, records


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
