"""What TopK costs in copies of the vector, and what pruning costs in a step of a real network."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.measure import Ratio, median_seconds
from bench.vectors import SPARSITIES, one_pass
from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from common.learning.task import Problem
from common.vectors import select_long
from common.vectors.sparsity import WarmTopK, top_k

Actions = dict[str, Callable[[], object]]

REPETITIONS = 15
STEPS = 5
SMALL = 176_402  # parameters of a small ResNet
WAYS = ("numpy", "fast")
MOST_PASSES = {0.95: 6.0, 0.99: 3.0}
MOST_WARM_PASSES = {"numpy": None, "fast": 2.0}
MOST_OVERHEAD_PERCENT = {"numpy": 2.0, "fast": 1.2}
MOST_FOR_AN_ENTRY = 4.0  # of a short vector, beside one of a long vector: there is no cliff between


def run(vector: Tensor, data: DataFolder) -> list[Ratio]:
    """Return passes at several sparsities, with and without the extra `fast`, and what pruning adds to a step."""
    passes = [ratio for sparsity in SPARSITIES for ratio in _passes(vector.clone(), sparsity)]
    experiment = load_experiment("cifar10", ["clients=2", "task.train_samples=500", "task.test_samples=10"])
    problem = experiment.load(data, torch.device("cpu"))
    overheads = [ratio for sparsity in (0.90, 0.95) for ratio in _overheads(sparsity, problem)]
    return [*passes, _short(vector.clone()), *overheads]


def _passes(vector: Tensor, sparsity: float) -> list[Ratio]:
    density, out = 1 - sparsity, torch.empty_like(vector)
    change = 0.002 * torch.randn_like(vector)  # thresholds move by some thousandths in a local step
    actions: Actions = {"pass": one_pass(vector), "step": partial(vector.add_, change)}
    for way in WAYS:
        actions[f"cold {way}"] = _by(way, top_k, vector, density)
        actions[f"warm {way}"] = _by(way, WarmTopK(), vector, density, out)
    seconds = median_seconds(actions, REPETITIONS)
    ratios = []
    for way in WAYS:
        name = f"{sparsity:.0%} of {len(vector) / 1e6:.1f} M, {way}"
        cold, warm = (seconds[f"{start} {way}"] / seconds["pass"] for start in ("cold", "warm"))
        ratios += [
            Ratio(f"TopK / copy, {name}", cold, MOST_PASSES.get(sparsity)),
            Ratio(f"TopK from the last threshold / copy, {name}", warm, MOST_WARM_PASSES[way]),
        ]
    return ratios


def _by(way: str, prune: Callable[..., Tensor], *arguments: Any) -> Callable[[], None]:  # noqa: ANN401 - of `prune`
    """Return TopK, done with the extra `fast` or without; where that is not installed, both are the same."""

    def pruned() -> None:
        before = select_long.FAST_FROM
        select_long.FAST_FROM = before if way == "fast" else sys.maxsize
        prune(*arguments)
        select_long.FAST_FROM = before

    return pruned


def _short(vector: Tensor) -> Ratio:
    """Measure what an entry of a vector costs that is too short for numba, beside one of a long vector."""
    actions: Actions = {}
    for name, one in {"short": vector[:SMALL].clone(), "long": vector}.items():
        actions[f"step of {name}"] = partial(one.add_, 0.002 * torch.randn_like(one))
        actions[name] = _by("numpy", WarmTopK(), one, 0.1, torch.empty_like(one))
    seconds = median_seconds(actions, REPETITIONS)
    ratio = (seconds["short"] / SMALL) / (seconds["long"] / len(vector))
    return Ratio(f"TopK of an entry of {SMALL:,} / of {len(vector) / 1e6:.1f} M", ratio, MOST_FOR_AN_ENTRY)


def _overheads(sparsity: float, problem: Problem) -> list[Ratio]:
    """Measure straight-through pruning beside forward and backward of ResNet18 at batch 32, on real images."""
    state = problem.initial_state()
    weights = state.model.clone()
    with problem.objective([0]).round(1, state.buffers) as gradient:
        point = torch.empty_like(weights) if gradient.point is None else gradient.point
        actions: Actions = {way: _by(way, WarmTopK(), weights, 1 - sparsity, point) for way in WAYS}
        actions["step"] = lambda: weights.sub_(gradient(point), alpha=0.05)
        seconds = median_seconds(actions, STEPS)
    return [
        Ratio(
            f"straight-through pruning, % of a ResNet18 step, {sparsity:.0%}, {way}",
            100 * seconds[way] / seconds["step"],
            MOST_OVERHEAD_PERCENT[way],
        )
        for way in WAYS
    ]
