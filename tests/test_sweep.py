"""Several step sizes as rows of one tensor: what the simulator gives for each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from common.learning.task import Problem
from common.rounds.algorithm import Algorithm
from server.simulation.simulation import Simulation
from server.simulation.sweep import Sweep

CPU = torch.device("cpu")
RATES = (0.05, 0.2, 0.5)


def small(algorithm: str) -> tuple[Experiment, Problem]:
    settings = [f"algorithm.name={algorithm}", "clients=4", "rounds=6", "schedule.period=5"]
    experiment = load_experiment("digits", [*settings, "codec.encode_in_simulation=false"])
    return experiment, experiment.load(DataFolder.choose(None), CPU)


def at(experiment: Experiment, rate: float) -> Experiment:
    return replace(experiment, algorithm=replace(experiment.algorithm, learning_rate=rate))


@pytest.mark.parametrize("name", plugins.available(Algorithm.plugin_package))
def test_a_sweep_is_the_simulations_of_its_step_sizes(name: str) -> None:
    experiment, problem = small(name)
    points = Sweep(experiment, problem, RATES, "test_accuracy").run()
    for point in points:
        records = list(Simulation(at(experiment, point.learning_rate), problem, CPU).rounds())
        assert not point.diverged
        for (bits, score), record in zip(point.curve, records, strict=True):
            # One rounding of a mean apart: a tie may fall to the other side, and with it one picture of 360.
            assert score == pytest.approx(record.metrics["test_accuracy"], abs=0.006)
            assert bits == pytest.approx(record.paper_bits_up, rel=0.01)


@pytest.mark.parametrize("name", ["sparse_proxskip", "fedavg", "server_pruning"])
def test_a_step_size_that_diverges_leaves_the_others_alone(name: str) -> None:
    experiment, problem = small(name)
    experiment = replace(experiment, rounds=40)
    (good, bad) = Sweep(experiment, problem, (0.2, 1e36), "test_accuracy").run()
    (alone,) = Sweep(experiment, problem, (0.2,), "test_accuracy").run()
    assert bad.diverged
    assert not good.diverged
    assert len(good.curve) == 40
    assert good.curve[-1] == pytest.approx(alone.curve[-1], rel=0.01)
