"""What uploads cost in each precision, all bits included, and what becomes of the model: ours, not the paper's."""

from __future__ import annotations

from server.research.study import Effort, Panel, StudyFigure, method
from server.research.study_kinds import EndStudy, Quantity

LAST = 5  # evaluations whose mean is shown: a small ResNet swings by some points from one to the next

STUDY = EndStudy(
    title="Uploads in each precision",
    methods=(
        method("sparse_proxskip", "codec.precision=float32", label="float32"),
        method("sparse_proxskip", "codec.precision=bfloat16", label="bfloat16"),
        method("sparse_proxskip", "codec.precision=grid", "codec.grid_bits=2", label="grid, grid_bits=2"),
    ),
    full=Effort(
        local_steps=800,
        seeds=3,
        evaluations=20,
        rounds={"digits": 100, "femnist-90": 40, "femnist-99": 40, "blogfeedback-90": 160, "cifar10-small": 30},
    ),
    quick=Effort(local_steps=160, seeds=1, evaluations=4),
    depends_on_seed=True,
    by_sparsity={
        "digits, 90 %": "digits",
        "writers, 90 %": "femnist-90",
        "writers, 99 %": "femnist-99",
        "BlogFeedback, 90 %": "blogfeedback-90",
        "CIFAR-10, 90 %": "cifar10-small",
    },
    quantities=[
        Quantity("test_accuracy", "accuracy, %", 1, 100, evaluations=LAST),
        Quantity("test_r2", "R², %", 1, 100, evaluations=LAST),
        Quantity("bits_a_value", "bits per kept value", 1),
    ],
    drawn=[
        StudyFigure(
            "bits",
            "writers, 90 %",
            [
                Panel("bits_a_value", "bits per kept value, so far", against="round"),
                Panel("test_accuracy", "test accuracy", against="round", lowest=0.75),
            ],
        )
    ],
)
