"""Which reading of the paper's set-up gives its Final-TopK row on BlogFeedback? Run `python -m bench.readings DATA`.

Final-TopK ends at the TopK of the ridge solution, which has a closed form: no training is needed to try a reading.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.learning.examples import r_squared
from common.randomness import stream
from common.tasks.blogfeedback import ARCHIVE, FEATURES, Matrix, read_archive, scale

KEPT = (56, 28, 14)  # of 281, at 80, 90 and 95 % sparsity
CLIENTS = 554
SCORE, LOSS = "R², %", "train loss, 1e7"
PAPER = {SCORE: ("26.4", "23.8", "16.4"), LOSS: ("2.817", "2.877", "3.113")}
RIDGES = {"1000": 1000.0, "500": 500.0, "1000/2 per client": 500.0 * CLIENTS}  # alpha over all clients together


def readings(train: Matrix, test: Matrix) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield each reading, by its scaling, rows and ridge, with what Final-TopK ends with."""
    features = train[:, :FEATURES]
    largest = np.abs(features).max(axis=0)
    ends = {
        "largest absolute value": (np.zeros_like(largest), largest),
        "range to 0..1": (features.min(axis=0), features.max(axis=0)),
        "standard deviation": (features.mean(axis=0), features.mean(axis=0) + features.std(axis=0)),
    }
    everything = np.arange(len(train))
    rows = {"all": everything, "90 %": stream(0, "validation").permutation(everything)[: int(0.9 * len(train))]}
    for scaling, (low, high) in ends.items():
        inputs, targets = scale(train, low, high)
        held_out = scale(test, low, high)
        for part, chosen in rows.items():
            for ridge_name, ridge in RIDGES.items():
                ends_with = _final_topk(inputs[chosen], targets[chosen], ridge, held_out)
                yield f"{scaling} | {part} | {ridge_name}", ends_with


def _final_topk(inputs: Matrix, targets: Matrix, ridge: float, test: tuple[Matrix, Matrix]) -> dict[str, list[str]]:
    """Return R^2 and the train loss of the pruned ridge solution, at each sparsity."""
    gram = inputs.T @ inputs + ridge * np.eye(inputs.shape[1])
    solution = np.linalg.solve(gram, inputs.T @ targets)
    scores, losses = [], []
    for kept in KEPT:
        pruned = np.where(np.abs(solution) >= np.sort(np.abs(solution))[-kept], solution, 0.0)
        residual = inputs @ pruned - targets
        scores.append(f"{100 * r_squared(test[0] @ pruned, test[1]):.1f}")
        losses.append(f"{(residual @ residual + ridge * pruned @ pruned) / 2e7:.3f}")
    return {SCORE: scores, LOSS: losses}


def main() -> None:
    """Print a table for each metric, the paper's row last."""
    train, test = read_archive(Path(sys.argv[1]) / ARCHIVE)
    found = list(readings(train, test))
    for metric, paper in PAPER.items():
        print(f"**{metric}**\n\n| features divided by, or | rows | ridge | 80 % | 90 % | 95 % |")
        print("|---|---|---|---:|---:|---:|")
        for reading, ends_with in found:
            print(f"| {reading} | {' | '.join(ends_with[metric])} |")
        print(f"| the paper | | | {' | '.join(paper)} |\n")


if __name__ == "__main__":
    main()
