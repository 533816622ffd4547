"""What two of ten clients that lie do to a model, with the plain mean and with --robust: see docs/operations.md.

python -m bench.liars [EXPERIMENT] [KEY=VALUE ...]
"""

from __future__ import annotations

import sys

import torch

from client.round import Participant
from common.errors import UserError
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.flower import quiet_flower
from strategies.flower.terms import Terms
from tests.harness.witness import Witness
from tests.hostile.liars import LIES, Lie, federation, liar

LIARS = (3, 7)
EXPERIMENTS = (("digits", ["rounds=100"]), ("femnist-90", ["rounds=60"]))


class Absent(Participant):
    """Cannot do anything it is asked for."""

    def train(self, *_: object) -> object:  # type: ignore[override]
        """Say so."""
        raise UserError("it is away")


def experiment_of(name: str, settings: list[str]) -> Experiment:
    """Return an experiment with ten clients, of which the last round is evaluated."""
    return load_experiment(name, ["clients=10", *settings])


def run(experiment: Experiment, lie: Lie | None, *, robust: bool) -> Witness:
    """Run it with two clients that lie, or with none."""
    terms = Terms(robust=len(LIARS) if robust else 0, audit_every_rounds=experiment.rounds)
    return federation(experiment, None, LIARS if lie else (), liar(lie) if lie else Participant, terms)


def without_liars(experiment: Experiment) -> Witness:
    """Run it with the eight others alone."""
    return federation(experiment, None, LIARS, Absent)


def accuracy(witness: Witness) -> float:
    """Return the accuracy in the end, in percent."""
    return 100 * witness.records[-1].metrics["test_accuracy"]


def main() -> None:
    """Print the table."""
    quiet_flower()
    torch.set_num_threads(1)  # ten clients take turns, with small models
    given = [(sys.argv[1], sys.argv[2:])] if len(sys.argv) > 1 else EXPERIMENTS
    print("| accuracy, % | plain mean | `--robust 2` |\n|---|---:|---:|")
    for name, settings in given:
        experiment = experiment_of(name, list(settings))
        eight = accuracy(without_liars(experiment))
        print(f"| {name}: the eight others alone | {eight:.1f} | |", flush=True)
        for what, lie in [("all ten are honest", None), *LIES.items()]:
            scores = [accuracy(run(experiment, lie, robust=robust)) for robust in (False, True)]
            print(f"| {name}: {what} | {scores[0]:.1f} | {scores[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
