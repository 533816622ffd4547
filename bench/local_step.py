"""What a local step costs beyond forward and backward, of ResNet18 at batch 32 on real images.

`python -m bench.local_step` prints it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.measure import Ratio, median_seconds
from bench.topk import WAYS, Actions, by
from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from common.learning.objectives.network import NetworkObjective
from common.randomness import torch_stream
from common.rounds.algorithm import LocalWork
from strategies.sparse_proxskip import SparseProxSkip

STEPS = 12
SPARSITIES = (0.90, 0.95)
SETTINGS = ("clients=2", "task.train_samples=500", "task.test_samples=10")
MOST_PRUNING_PERCENT = {"numpy": 2.0, "fast": 1.2}
MOST_OVERHEAD_PERCENT = {"numpy": None, "fast": 3.0}


def run(data: DataFolder) -> list[Ratio]:
    """Return what pruning, and all of sparse_proxskip, adds to a step, with the extra `fast` and without."""
    return [ratio for sparsity in SPARSITIES for ratio in _overheads(sparsity, data)]


def _overheads(sparsity: float, data: DataFolder) -> list[Ratio]:
    density = 1 - sparsity
    experiment = load_experiment(
        "cifar10", [*SETTINGS, "algorithm.name=sparse_proxskip", f"algorithm.density={density}"]
    )
    problem = experiment.load(data, torch.device("cpu"))
    algorithm, objective, state = experiment.algorithm, problem.objective([0]), problem.initial_state()
    assert isinstance(algorithm, SparseProxSkip)
    assert isinstance(objective, NetworkObjective)
    plan, weights = experiment.plan(1), state.model.clone()
    with objective.round(plan.round, state.buffers) as gradient:
        actions: Actions = {"bare": _bare_step(objective)}
        for way in WAYS:
            local = LocalWork(plan, gradient, torch.zeros_like(weights))
            actions[f"prune {way}"] = by(way, local.pruned, weights, density)
            actions[f"step {way}"] = by(way, algorithm.local_step, plan, weights, local)
        seconds = median_seconds(actions, STEPS)
    ratios = []
    for way in WAYS:
        pruning, step = (100 * seconds[f"{what} {way}"] / seconds["bare"] for what in ("prune", "step"))
        name = f"a ResNet18 step, {sparsity:.0%}, {way}"
        ratios += [
            Ratio(f"straight-through pruning, % of {name}", pruning, MOST_PRUNING_PERCENT[way]),
            Ratio(f"beyond forward and backward, % of {name}", step - 100, MOST_OVERHEAD_PERCENT[way]),
        ]
    return ratios


def _bare_step(objective: NetworkObjective) -> Callable[[], None]:
    """Return forward and backward on the next batch, as any training has them."""
    generator = torch_stream(0, "bare")
    batches = objective.batches.endless(generator)

    def step() -> None:
        objective.network.gradient.zero_()
        objective.batch_loss(next(batches), generator).backward()  # type: ignore[no-untyped-call]

    return step


if __name__ == "__main__":
    for ratio in run(DataFolder.choose(None)):
        print(f"{ratio.name:80} {ratio.value:8.2f} {ratio.limit or ''}")
