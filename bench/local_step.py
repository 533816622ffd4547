"""What a local step costs beyond forward and backward, of ResNet18 at batch 32 on real images.

`python -m bench.local_step` prints medians and quartiles. In two ways, as a step's own noise is larger than what is
looked for: what a step takes before and after its forward and backward pass, and by how much it is longer than a bare
one beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import torch

from bench.measure import Ratio
from bench.topk import WAYS, by
from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from common.learning.objectives.network import NetworkObjective
from common.learning.trained_part import TrainedPart
from common.randomness import torch_stream
from common.rounds.algorithm import LocalWork
from strategies.sparse_proxskip import SparseProxSkip

PAIRS = 40
SPARSITIES = (0.90, 0.95)
SETTINGS = ("clients=2", "task.train_samples=2000", "task.test_samples=10")
MOST_PRUNING_PERCENT = {"numpy": 2.0, "fast": 1.2}
MOST_OVERHEAD_PERCENT = {"numpy": None, "fast": 3.0}


@dataclass(frozen=True)
class Seconds:
    """What each pair of steps, a bare one and one of sparse_proxskip, took."""

    bare: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)  # forward and backward of that step
    pruning: list[float] = field(default_factory=list)  # in that step

    def percent(self) -> dict[str, list[float]]:
        """Return what is beyond forward and backward, in percent of the bare step."""
        usual = statistics.median(self.bare) / 100
        return {
            "straight-through pruning": [one / usual for one in self.pruning],
            "beyond forward and backward": [(a - b) / usual for a, b in zip(self.step, self.inside, strict=True)],
            "longer than a bare one": [(a - b) / usual for a, b in zip(self.step, self.bare, strict=True)],
        }


def run(data: DataFolder) -> list[Ratio]:
    """Return what pruning, and all of sparse_proxskip, adds to a step, with the extra `fast` and without."""
    ratios = []
    for name, way, found in measured(data):
        pruning, beyond, longer = (statistics.median(one) for one in found.percent().values())
        ratios += [
            Ratio(f"straight-through pruning, % of {name}", pruning, MOST_PRUNING_PERCENT[way]),
            Ratio(f"beyond forward and backward, % of {name}", beyond, MOST_OVERHEAD_PERCENT[way]),
            Ratio(f"longer than the bare one beside it, % of {name}", longer, None),
        ]
    return ratios


def measured(data: DataFolder) -> Iterator[tuple[str, str, Seconds]]:
    """Yield what steps took at each sparsity, in each way."""
    for sparsity in SPARSITIES:
        for way, seconds in _pairs(sparsity, data).items():
            yield f"a ResNet18 step, {sparsity:.0%}, {way}", way, seconds


def _pairs(sparsity: float, data: DataFolder) -> dict[str, Seconds]:
    experiment = load_experiment(
        "cifar10", [*SETTINGS, "algorithm.name=sparse_proxskip", f"algorithm.density={1 - sparsity}"]
    )
    problem = experiment.load(data, torch.device("cpu"))
    algorithm, objective, state = experiment.algorithm, problem.objective([0]), problem.initial_state()
    assert isinstance(algorithm, SparseProxSkip)
    assert isinstance(objective, NetworkObjective)
    plan, start = experiment.plan(1), state.model
    found = {way: Seconds() for way in WAYS}
    with objective.round(plan.round, state.buffers) as gradient:
        bare = _bare_step(objective)
        for way, seconds in found.items():  # one after the other: a step prepares the next one
            weights, local = start.clone(), LocalWork(plan, gradient, torch.zeros_like(start))
            ours = by(way, algorithm.local_step, plan, weights, local)
            for pair in range(PAIRS + 1):
                actions = [partial(_timed, bare, seconds.bare), partial(_timed_step, ours, seconds)]
                for action in actions if pair % 2 else reversed(actions):  # whatever one leaves behind for the other
                    action()
    return {way: _without_first(seconds) for way, seconds in found.items()}


def _timed(action: Callable[[], object], into: list[float]) -> None:
    started = time.perf_counter()
    action()
    into.append(time.perf_counter() - started)


def _timed_step(step: Callable[[], object], seconds: Seconds) -> None:
    """Time a step, and within it pruning, and all from the loaded weights to the gradient."""
    began = 0.0
    load, gather, pruned = TrainedPart.load, TrainedPart.gather, LocalWork.pruned

    def loaded(network: TrainedPart, vector: torch.Tensor) -> None:
        nonlocal began
        load(network, vector)
        began = time.perf_counter()

    def gathered(network: TrainedPart) -> torch.Tensor:
        seconds.inside.append(time.perf_counter() - began)
        return gather(network)

    def timed_pruned(local: LocalWork, weights: torch.Tensor, density: float) -> torch.Tensor:
        started = time.perf_counter()
        point = pruned(local, weights, density)
        seconds.pruning.append(time.perf_counter() - started)
        return point

    with (
        patch.object(TrainedPart, "load", loaded),
        patch.object(TrainedPart, "gather", gathered),
        patch.object(LocalWork, "pruned", timed_pruned),
    ):
        _timed(step, seconds.step)


def _without_first(seconds: Seconds) -> Seconds:
    """Leave out what was done for the first time."""
    return Seconds(seconds.bare[1:], seconds.step[1:], seconds.inside[1:], seconds.pruning[1:])


def _bare_step(objective: NetworkObjective) -> Callable[[], None]:
    """Return forward and backward on the next batch, as any training has them."""
    generator = torch_stream(0, "bare")
    batches = objective.batches.endless(generator)

    def step() -> None:
        objective.network.gradient.zero_()
        objective.batch_loss(next(batches), generator).backward()  # type: ignore[no-untyped-call]

    return step


if __name__ == "__main__":
    for name, _, seconds in measured(DataFolder.choose(None)):
        for what, percents in seconds.percent().items():
            lower, middle, upper = statistics.quantiles(percents, n=4)
            print(f"{what + ', % of ' + name:80} {middle:6.2f} ({lower:.2f} to {upper:.2f})")
        print(f"{'a bare step, ms':80} {1000 * statistics.median(seconds.bare):6.0f}")
