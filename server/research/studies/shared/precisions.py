"""What the studies of uploads compare: sparse_proxskip in each precision."""

from __future__ import annotations

from server.research.study import Method, Panel, StudyFigure, method
from server.research.study_kinds import Quantity

BITS = Quantity("bits_a_value", "bits per kept value", 1)


def in_each_precision(grid_bits: int, *settings: str) -> tuple[Method, ...]:
    """Return sparse_proxskip in all of them."""
    return (
        method("sparse_proxskip", "codec.precision=float32", *settings, label="float32"),
        method("sparse_proxskip", "codec.precision=bfloat16", *settings, label="bfloat16"),
        method(
            "sparse_proxskip",
            "codec.precision=grid",
            f"codec.grid_bits={grid_bits}",
            *settings,
            label=f"grid, grid_bits={grid_bits}",
        ),
    )


def score(metric: str, name: str, evaluations: int = 1) -> Quantity:
    """Return a score as the mean of the last evaluations."""
    return Quantity(metric, name, 1, 100, evaluations=evaluations)


def bits_and_accuracy(column: str, lowest: float) -> StudyFigure:
    """Return both in the course of training."""
    return StudyFigure(
        "bits",
        column,
        [
            Panel("bits_a_value", "bits per kept value, so far", against="round"),
            Panel("test_accuracy", "test accuracy", against="round", lowest=lowest),
        ],
    )
