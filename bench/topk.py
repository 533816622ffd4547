"""What TopK costs in copies of the vector, and what pruning costs in a step of a real network."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.measure import Ratio, median_seconds
from bench.vectors import SPARSITIES, one_pass
from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from common.learning.task import Problem
from common.vectors.sparsity import WarmTopK, top_k

REPETITIONS = 15
STEPS = 5
MOST_PASSES = {0.95: 6.0, 0.99: 3.0}
MOST_OVERHEAD_PERCENT = 2.0


def run(vector: Tensor, data: DataFolder) -> list[Ratio]:
    """Return passes at several sparsities, and the overhead of straight-through pruning."""
    passes = [ratio for sparsity in SPARSITIES for ratio in _passes(vector.clone(), sparsity)]
    experiment = load_experiment("cifar10", ["clients=2", "task.train_samples=500", "task.test_samples=10"])
    problem = experiment.load(data, torch.device("cpu"))
    return [*passes, *(_overhead(sparsity, problem) for sparsity in (0.90, 0.95))]


def _passes(vector: Tensor, sparsity: float) -> list[Ratio]:
    density, warm = 1 - sparsity, WarmTopK()
    change = 0.002 * torch.randn_like(vector)  # thresholds move by some thousandths in a local step
    seconds = median_seconds(
        {
            "pass": one_pass(vector),
            "cold": lambda: top_k(vector, density),
            "step": lambda: vector.add_(change),
            "warm": lambda: warm(vector, density),
        },
        REPETITIONS,
    )
    name = f"{sparsity:.0%} of {len(vector) / 1e6:.1f} M"
    return [
        Ratio(f"TopK / copy, {name}", seconds["cold"] / seconds["pass"], MOST_PASSES.get(sparsity)),
        Ratio(f"TopK from the last threshold / copy, {name}", seconds["warm"] / seconds["pass"], None),
    ]


def _overhead(sparsity: float, problem: Problem) -> Ratio:
    """Measure straight-through pruning beside forward and backward of ResNet18 at batch 32, on real images."""
    state = problem.initial_state()
    warm, weights, pruned = WarmTopK(), state.model.clone(), state.model

    def prune() -> None:
        nonlocal pruned
        pruned = warm(weights, 1 - sparsity)

    with problem.objective([0]).round(1, state.buffers) as gradient:

        def step() -> None:
            weights.sub_(gradient(pruned), alpha=0.05)

        seconds = median_seconds({"prune": prune, "step": step}, STEPS)
    percent = 100 * seconds["prune"] / seconds["step"]
    return Ratio(f"straight-through pruning, % of a ResNet18 step, {sparsity:.0%}", percent, MOST_OVERHEAD_PERCENT)
