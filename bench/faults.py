"""What the protocol is good for: accuracy while uploads are lost, with it and without. Run `python -m bench.faults`.

Without it clients do what a textbook says: they close every round with the next model that they see, whether their
upload was counted or not.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from flwr.app import Message, MessageType
from matplotlib.figure import Figure
from numpy.typing import NDArray

from client.round import Participant
from common.experiment.files import load_experiment
from common.messages.messages import Order, Run
from common.rounds.state import ClientMemory
from server.research.statistics import mean_and_error
from strategies.flower.terms import Terms
from strategies.sparse_proxskip import SparseProxSkip
from tests.harness.loopback import Fate, LoopbackClient, LoopbackGrid
from tests.harness.witness import Witness

LOST = 0.2  # of the uploads
ROUNDS = 300
SEEDS = range(5)
FIGURE = Path(__file__).parent.parent / "docs" / "faults.png"

Curves = NDArray[np.float64]  # seed, round, (accuracy, relative sum of the controls)


@dataclass(frozen=True, kw_only=True)
class Unmended(SparseProxSkip):
    """The method whose sum nobody brings back to zero when an audit finds that it is not."""

    keeps_zero_sum: ClassVar[bool] = False


class TextbookClient(Participant):
    """A client that believes that every upload arrives."""

    def _settled(self, order: Order) -> ClientMemory:
        return self._algorithm.settle(self._recalled(), order.state.model)


def measure(lost: float, kind: type[Participant]) -> Curves:
    """Return the curves of all seeds."""
    return np.array([_run(seed, lost, kind) for seed in SEEDS])


def _run(seed: int, lost: float, kind: type[Participant]) -> list[tuple[float, float]]:
    experiment = load_experiment("digits", [f"rounds={ROUNDS}", f"seed={seed}", "algorithm.name=bench.faults:Unmended"])
    run = Run(experiment=experiment, name="faults")
    chance = random.Random(seed)  # noqa: S311 - no secret
    clients = {index + 1: LoopbackClient(index, None, run, kind) for index in range(experiment.clients)}

    def fate(message: Message) -> Fate:
        trains = message.metadata.message_type == MessageType.TRAIN
        return Fate.ANSWER_LOST if trains and chance.random() < lost else Fate.ANSWERED

    grid = LoopbackGrid(clients, fate)
    run_of = Witness(experiment, Terms(minimum_clients=1, audit_every_rounds=1)).run(grid)
    return [(record.metrics["test_accuracy"], record.control_sum_norm or 0.0) for record in run_of.records]


def draw(curves: Mapping[str, Curves], path: Path) -> None:
    """Draw accuracy and sum against rounds: means over seeds, shaded by their standard error."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    accuracy, total = figure.subplots(1, 2)
    for name, values in curves.items():
        for place, axes in enumerate((accuracy, total)):
            mean, error = mean_and_error(values[:, :, place])
            (line,) = axes.plot(np.arange(1, ROUNDS + 1), mean, label=name)
            axes.fill_between(np.arange(1, ROUNDS + 1), mean - error, mean + error, color=line.get_color(), alpha=0.2)
    accuracy.set(
        xlabel="round", ylabel="test accuracy", ylim=(0.6, 0.95), title="handwritten digits, 10 % of weights kept"
    )
    total.set(xlabel="round", ylabel="|mean of h| / mean of |h|", yscale="log", title="sum of the control variates")
    for axes in (accuracy, total):
        axes.grid(alpha=0.3)
    accuracy.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, draw, and print where the curves end."""
    torch.set_num_threads(1)
    curves = {
        "nothing is lost": measure(0.0, Participant),
        f"{LOST:.0%} of uploads lost, with the protocol": measure(LOST, Participant),
        f"{LOST:.0%} of uploads lost, without": measure(LOST, TextbookClient),
    }
    draw(curves, FIGURE)
    for name, values in curves.items():
        (accuracy, total), (error, _) = mean_and_error(values[:, -1])
        sys.stdout.write(f"{name}: accuracy {accuracy:.3f} +- {error:.3f}, relative sum {total:.1e}\n")
    sys.stdout.write(f"figure: {FIGURE}\n")


if __name__ == "__main__":
    main()
