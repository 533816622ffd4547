"""Beyond the paper: clients whose weights, gradients and controls live in a small public arena."""

from __future__ import annotations

from server.research.study import Effort, Method, Panel, StudyFigure, method
from server.research.study_kinds import EndStudy, Quantity


def _arena(places: float, exploration: float, dense_rounds: int) -> Method:
    """Return an arena of so many times K places, of which some are drawn anew in every round."""
    return method(
        "sparse_proxskip_arena",
        f"algorithm.arena={places}",
        f"algorithm.exploration={exploration}",
        f"algorithm.dense_rounds={dense_rounds}",
        label=f"arena {places:g} K, {exploration:g} K drawn, {dense_rounds} dense rounds",
    )


STUDY = EndStudy(
    title="Sparse-ProxSkip in an arena",
    methods=(
        method("sparse_proxskip"),
        _arena(1.5, 0.2, 2),
        _arena(2.5, 0.2, 2),
        _arena(2.5, 1, 2),
        _arena(2.5, 0.2, 10),
    ),
    full=Effort(
        local_steps=1_600,
        seeds=2,
        evaluations=20,
        rounds={"femnist-90": 50, "femnist-95": 200},
    ),
    quick=Effort(local_steps=160, seeds=1, evaluations=4),
    depends_on_seed=True,
    by_sparsity={
        "writers, 90 %": "femnist-90",
        "writers, 95 %": "femnist-95",
    },
    quantities=[
        Quantity("test_accuracy", "accuracy, %", 1, 100, evaluations=3),
        Quantity("control_relative", "sum of h, relative, 1e-6", 2, 1e6),
    ],
    drawn=[
        StudyFigure(
            "curves",
            "writers, 90 %",
            [
                Panel("test_accuracy", "test accuracy", against="round", lowest=0.75),
                Panel("train_loss", "train loss", against="round", logarithmic=True),
            ],
        )
    ],
)
