"""What one run of a study gives: what is seen of a simulation in its course."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import DivergedError
from common.experiment.experiment import Experiment
from common.rounds.records import BITS_A_VALUE
from server.research.batch import CPU, problem_of
from server.research.study import Sample, StudyRun
from server.simulation.simulation import Simulation

ENCODED = 20  # uploads of a round, about: to encode those of 554 clients takes as long as to train them


@dataclass(frozen=True)
class Outcome:
    """What a run gave, and on what data: there are stand-ins, each named for what it is."""

    data_name: str
    samples: list[Sample]


def outcome_of(run: StudyRun, data: Path | None) -> Outcome:
    """Run one simulation; that a method diverges is a result: the curve ends there."""
    experiment = run.load()
    problem = problem_of(experiment, data)
    simulation = Simulation(experiment, problem, CPU, run.participation)
    samples: list[Sample] = []
    try:
        samples.extend(_samples(simulation, experiment))
    except DivergedError:
        samples.append({"round": simulation.checkpoint.round, "bits": simulation.checkpoint.bits_up})
    return Outcome(problem.data_name, samples)


def _samples(simulation: Simulation, experiment: Experiment) -> Iterator[Sample]:
    """Run, and give what is seen after the rounds that are evaluated."""
    sent_bytes, since = 0.0, 0
    simulation.encodes_every = max(1, simulation.problem.clients // ENCODED)
    while simulation.checkpoint.round < experiment.rounds:
        evaluated = experiment.is_evaluated(simulation.checkpoint.round + 1)
        simulation.encodes = evaluated  # which takes its time, and holds for the rounds before
        record = simulation.step()
        since += 1
        if evaluated:
            encoded = -(-record.clients_counted // simulation.encodes_every)
            present = record.clients_counted / record.clients
            sent_bytes += since * present * (record.payload_bytes_up or 0) / encoded
            since = 0
            counted = {"round": float(record.round), "bits": record.paper_bits_up, "bytes": sent_bytes}
            counted["bits_a_value"] = 8 * BITS_A_VALUE * sent_bytes / record.paper_bits_up
            relative = {} if record.control_sum_norm is None else {"control_relative": record.control_sum_norm}
            yield counted | record.metrics | simulation.norms() | relative
