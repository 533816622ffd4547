"""How much a simulated local step of all BlogFeedback clients costs beyond its gradient."""

from __future__ import annotations

import torch

from bench.measure import median_seconds
from common import plugins
from common.algorithm import Algorithm
from common.data import DataFolder
from common.experiment import load_experiment

REPETITIONS = 300


def run(data: DataFolder) -> dict[str, float]:
    """Return the ratio of each algorithm's local step to the bare batched gradient."""
    experiment = load_experiment("blogfeedback")
    problem = experiment.task.load(data, clients=experiment.clients, seed=0, device=torch.device("cpu"))
    gradient = problem.objective(range(problem.clients)).start_round(1, None)
    plan = experiment.plan(2)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(problem.clients, problem.initial_state().model.shape[-1], generator=generator)
    control = torch.randn(weights.shape, generator=generator)

    def step_of(name: str) -> float:
        algorithm = load_experiment("blogfeedback", [f"algorithm.name={name}"]).algorithm
        corrected = (lambda w: gradient(w) - control) if algorithm.has_control else gradient
        times = median_seconds(
            {"gradient": lambda: gradient(weights), "step": lambda: algorithm.local_step(plan, weights, corrected)},
            REPETITIONS,
        )
        return times["step"] / times["gradient"]

    names = plugins.available(Algorithm.plugin_package)
    return {f"local step / bare gradient, {name}": step_of(name) for name in names}
