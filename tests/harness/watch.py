"""Runs to look at, and the program that shows them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
from flwr.app import Message, MessageType

from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.messages import Run
from common.rounds.records import PHASES, ClientRecord, RoundRecord, utc_now
from server.commands.audience import Audience
from server.commands.console import Terminal
from server.commands.simulated import run_simulation
from server.deploy.federation import Federation
from server.deploy.local_clients import leaving
from server.runs.course import Course
from server.runs.recorder import Recorder
from server.runs.run_folder import RunFolder
from server.simulation.simulation import Simulation
from strategies.flower.terms import Terms
from tests.harness.loopback import Fate, LoopbackClient, LoopbackGrid
from tests.harness.witness import CPU, load

AWAY = "client-2"  # in the last two rounds of a deployed run
HOSTILE = "<script>alert(1)</script>"  # what its first client is called


def experiment_of(*settings: str) -> Experiment:
    return load_experiment("digits", ["clients=3", "rounds=6", "schedule.period=4", *settings])


def simulated_run(folder: Path, *settings: str) -> RunFolder:
    """Run a tiny simulation, as the program does."""
    experiment = experiment_of(*settings)
    run = RunFolder.create(folder, experiment, "scikit-learn digits")
    run_simulation(
        Simulation(experiment, load(experiment), CPU), run, Audience(terminal=Terminal(quiet=True), command="")
    )
    return run


def deployed_run(folder: Path, *settings: str) -> RunFolder:
    """Run the deployed strategy and three clients, of which one is lost on its way in the last two rounds."""
    experiment = experiment_of(*settings)
    run = RunFolder.create(folder, experiment, "scikit-learn digits")
    problem = load(experiment)
    course = Course(problem.metric)
    recorder = Recorder(run, experiment, show=course.add, say=lambda _: None)
    names = {1: HOSTILE, 2: "client-1", 3: AWAY}
    known = Run(experiment=experiment, name=recorder.run)
    clients = {node: LoopbackClient(node - 1, None, known, name=name) for node, name in names.items()}

    def fate(message: Message) -> Fate:
        is_last = message.metadata.message_type == MessageType.TRAIN and int(message.metadata.group_id) > 4
        return Fate.LOST if is_last and message.metadata.dst_node_id == 3 else Fate.ANSWERED

    terms = Terms(minimum_clients=2)
    Federation(experiment, problem, terms, recorder, course).run(LoopbackGrid(clients, fate))
    return run


def some_record(number: int, clients: int, score: float = 0.5) -> RoundRecord:
    """Return a round of so many clients, in the real form."""
    seconds = {phase: 0.0123 * (1 + place) + number % 7 * 0.0011 for place, phase in enumerate(PHASES)}
    one = ClientRecord(
        payload_bytes_up=12345 + number % 100,
        payload_bytes_down=23456,
        message_bytes_up=12421 + number % 100,
        message_bytes_down=23532,
        paper_bits_up=98765,
        memory_mb=368.1,
        seconds=seconds,
    )
    by_client = {
        f"client-{index}": replace(one, payload_bytes_up=12000 + 37 * (index + number) % 999)
        for index in range(clients)
    }
    return RoundRecord(
        round=number,
        time=utc_now(),
        local_steps=4,
        clients=clients,
        clients_counted=clients,
        paper_bits_up=98765.0 * number,
        density_up=0.1,
        density_down=0.2,
        control_sum_norm=1e-7,
        seconds=0.1,
        metrics={"test_accuracy": score},
        payload_bytes_up=12345 * clients,
        payload_bytes_down=23456 * clients,
        message_bytes_up=12421 * clients,
        message_bytes_down=23532 * clients,
        waited_for="client-0",
        seconds_by_phase=seconds,
        by_client=by_client,
    )


class Visitor:
    """Somebody who looks at a watch that runs."""

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address = address
        self.process = process

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.address.rstrip("/") + path, headers=headers, timeout=30)

    def ask(self, path: str, *ids: str) -> Any:  # noqa: ANN401 - JSON
        answer = self.get(f"{path}?{urlencode([('id', one) for one in ids])}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    @contextmanager
    def live(self, run_id: str = "") -> Iterator[Iterator[Any]]:
        """Hear of changes as they come."""
        query = {"id": run_id} if run_id else {}
        with httpx.stream("GET", f"{self.address}api/live", params=query, timeout=30) as answer:
            yield (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: "))


@contextmanager
def watch(root: Path, *arguments: str) -> Iterator[Visitor]:
    """Start the program; it is gone when the context ends."""
    command = [sys.executable, "-m", "server", "watch", str(root), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        with leaving(process):  # type: ignore[arg-type]
            first = process.stdout.readline()
            assert first.startswith("watching "), first
            yield Visitor(first.split()[-1], process)
