"""Runs on all cores: their processes end when what they compute is wanted no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import held
from tests.harness.processes import alive, stat_of, wait_until
from tests.harness.small_data import write_femnist

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
PERIODS = 2  # each is a job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a test, with a data set; held processes leave their ids in `held`."""
    write_femnist(tmp_path)
    (tmp_path / "held").mkdir()
    return tmp_path


@contextmanager
def tuning(folder: Path, *algorithms: str) -> Iterator[subprocess.Popen[bytes]]:
    """Search with several methods, of which one may be held; nothing of it is left when the context ends."""
    options = ["--periods", "2:8", "--periods-tried", str(PERIODS), "--local-steps", "8"]
    settings = ["--set", "clients=2", "--set", "task.validation_writers=1"]
    where = ["--data", str(folder), "--output", str(folder / "tuning")]
    with (folder / "log").open("wb") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", "server", "tune", "femnist", *algorithms, *options, *settings, *where],
            stdout=log,
            stderr=log,
            env=held.environment(folder / "held"),
            cwd=held.REPOSITORY,
            start_new_session=True,  # so that what a terminal sends to all processes can be sent to these
        )
    try:
        yield program
    finally:
        program.kill()
        program.wait()
        for worker in filter(alive, held.computing(folder / "held")):
            os.kill(worker, signal.SIGKILL)


def workers_that_compute(folder: Path) -> set[int]:
    """Wait until all of them do, and return them."""
    wait_until(lambda: len(held.computing(folder / "held")) == min(PERIODS, os.cpu_count() or 1))
    return held.computing(folder / "held")


def test_workers_end_in_mid_computation_when_their_parent_is_killed(folder: Path) -> None:
    with tuning(folder, held.NAME):
        workers = workers_that_compute(folder)
        (parent,) = {int(stat_of(worker)[1]) for worker in workers}
        os.kill(parent, signal.SIGKILL)
        wait_until(lambda: not any(map(alive, workers)))


@pytest.mark.slow
def test_a_search_that_is_interrupted_ends_at_once_and_goes_on_when_it_is_called_again(folder: Path) -> None:
    trials = folder / "tuning" / "trials.jsonl"
    with tuning(folder, "fedavg", held.NAME) as program:
        workers = workers_that_compute(folder)
        wait_until(lambda: trials.exists() and "\n" in trials.read_text())
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(60) != 0
        wait_until(lambda: not any(map(alive, workers)))
    assert "Traceback" not in (folder / "log").read_text()
    done = trials.read_text()
    assert held.NAME not in done
    held.release(folder / "held")
    with tuning(folder, "fedavg", held.NAME) as program:
        assert program.wait(60) == 0
    assert trials.read_text().startswith(done)
    assert len(trials.read_text().splitlines()) == 2 * PERIODS
    assert held.NAME in (folder / "tuning" / "tuned.yaml").read_text()


def test_a_worker_that_is_killed_is_told_in_one_line(folder: Path) -> None:
    with tuning(folder, held.NAME) as program:
        os.kill(workers_that_compute(folder).pop(), signal.SIGKILL)
        assert program.wait(60) == 2
    (line,) = (folder / "log").read_text().splitlines()
    assert line.startswith("error: a process that computed was killed")
