"""How much simulating all BlogFeedback clients costs beyond their bare batched gradient."""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.measure import Ratio, median_seconds
from common.experiment import plugins
from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from common.learning.task import Problem
from common.rounds.algorithm import Algorithm
from server.simulation.simulation import Simulation

CPU = torch.device("cpu")
ROUNDS_BEFORE = 5
STEPS = 300
ROUNDS = 5
LIMIT = 1.5


def run(data: DataFolder) -> list[Ratio]:
    """Return the cost of a local step of each algorithm, and of a whole round, in gradients."""
    experiment = load_experiment("blogfeedback")
    problem = experiment.load(data, CPU)
    names = plugins.available(Algorithm.plugin_package)
    return [*(_local_step(name, problem) for name in names), _whole_round(problem)]


def _local_step(name: str, problem: Problem) -> Ratio:
    """Measure the local steps of a round in mid-run, one after the other as the algorithm takes them."""
    simulation = Simulation(load_experiment("blogfeedback", [f"algorithm.name={name}"]), problem, CPU)
    for _ in range(ROUNDS_BEFORE):
        simulation.step()
    algorithm, plan = simulation.algorithm, simulation.experiment.plan(ROUNDS_BEFORE + 1)
    (cohort,) = simulation.cohorts
    download = cohort.download(simulation.state)
    weights = algorithm.starting_point(plan, replace(download, model=download.model.clone()))
    with cohort.objective.round(plan.round, None) as gradient:
        local = algorithm.local_work(plan, download, cohort.memory, gradient)

        def step() -> None:
            nonlocal weights
            weights = algorithm.local_step(plan, weights, local)

        seconds = median_seconds({"gradient": lambda: gradient(weights), "step": step}, STEPS)
    return Ratio(f"local step / gradient, {name}", seconds["step"] / seconds["gradient"], LIMIT)


def _whole_round(problem: Problem) -> Ratio:
    """Measure a round with everything in it: local steps, pruning, average, evaluation, record."""
    experiment = load_experiment("blogfeedback")
    simulation = Simulation(experiment, problem, CPU)
    simulation.step()  # the first round has one step only
    objective = problem.objective(range(problem.clients))
    weights = simulation.state.model.expand(problem.clients, -1)
    steps = experiment.plan(2).local_steps

    def gradients() -> None:
        with objective.round(1, None) as gradient:
            for _ in range(steps):
                gradient(weights)

    seconds = median_seconds({"gradients": gradients, "round": simulation.step}, ROUNDS)
    return Ratio(f"round of {steps} steps / {steps} gradients", seconds["round"] / seconds["gradients"], LIMIT)
