"""The figures of the paper's Appendix D: what becomes of training when the control variates do not sum to zero."""

from __future__ import annotations

from server.research.studies.shared.femnist import STAND_IN
from server.research.study import Effort, Panel, method
from server.research.study_kinds import CourseStudy, Quantity

# One step size and one period for all four: they differ only in where they prune.
SAME = ("algorithm.learning_rate=0.2", "schedule.kind=period", "schedule.period=32")

STUDY = CourseStudy(
    title="Handwriting by writer, 90 % sparsity: the sum of the control variates (Appendix D)",
    methods=tuple(
        method(name, *SAME)
        for name in ("sparse_proxskip", "sparse_proxskip_modified", "server_pruning", "server_pruning_modified")
    ),
    full=Effort(local_steps=1_600, seeds=2),
    quick=Effort(local_steps=640, seeds=1),
    depends_on_seed=True,
    experiment="femnist",
    quantities=[
        Quantity("test_accuracy", "accuracy, %", 1, 100),
        Quantity("control_sum", "norm of the sum of h", 4),
        Quantity("control_norm", "mean norm of h", 4),
        Quantity("model_norm", "norm of w", 2),
        Quantity("train_loss", "train loss", 3),
    ],
    panels=[
        Panel("test_accuracy", "test accuracy", against="round"),
        Panel("control_sum", "norm of the sum of h", against="round", logarithmic=True),
        Panel("control_norm", "mean norm of h", against="round", logarithmic=True),
        Panel("model_norm", "norm of w", against="round", logarithmic=True),
        Panel("train_loss", "train loss", against="round", logarithmic=True),
    ],
    remarks=[
        "sparse_proxskip and server_pruning_modified keep the sum at zero; server_pruning and sparse_proxskip_modified "
        "do not.",
        STAND_IN,
    ],
)
