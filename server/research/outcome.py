"""What one run of a study gives: what is seen of a simulation in its course."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import DivergedError
from common.experiment.experiment import Experiment
from common.rounds.records import BITS_A_VALUE
from common.rounds.state import Precision
from server.research.batch import CPU, problem_of
from server.research.study import Sample, StudyRun
from server.simulation.simulation import Simulation

MEASURED_EVERY = 5  # evaluations: encoding the uploads of all clients takes as long as some local steps


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
    sent_bytes, upload_bytes, since, seen = 0.0, 0.0, 0, 0
    sent_as: Precision = "bfloat16" if experiment.codec.precision == "float32" else experiment.codec.precision
    while simulation.checkpoint.round < experiment.rounds:
        evaluated = experiment.is_evaluated(simulation.checkpoint.round + 1)
        # What the codec makes of an upload is measured now and then, and holds for the rounds around.
        simulation.encode_as = sent_as if evaluated and seen % MEASURED_EVERY == 0 else None
        record = simulation.step()
        since += 1
        if evaluated:
            if record.payload_bytes_up is not None:
                upload_bytes = record.payload_bytes_up / simulation.problem.clients
            sent_bytes += since * upload_bytes
            since, seen = 0, seen + 1
            counted = {"round": float(record.round), "bits": record.paper_bits_up, "bytes": sent_bytes}
            counted["bits_a_value"] = 8 * BITS_A_VALUE * sent_bytes / record.paper_bits_up
            relative = {} if record.control_sum_norm is None else {"control_relative": record.control_sum_norm}
            yield counted | record.metrics | simulation.norms() | relative
