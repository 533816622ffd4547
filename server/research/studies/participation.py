"""Beyond the paper: only a part of the clients takes part in a round."""

from __future__ import annotations

from server.research.studies.shared.femnist import STAND_IN
from server.research.studies.shared.rivals import rivals_in_part
from server.research.study import Effort, Panel, method
from server.research.study_kinds import CourseStudy, Quantity

EXPERIMENT = "femnist-90"
STUDY = CourseStudy(
    title="Handwriting by writer, 90 % sparsity: when only a part of the clients takes part in a round",
    methods=(
        method("sparse_proxskip", label="sparse_proxskip, everyone"),
        method("sparse_proxskip", label="sparse_proxskip, half of the clients", participation=0.5),
        method("sparse_proxskip", label="sparse_proxskip, a tenth of the clients", participation=0.1),
        method("fediht", label="fediht, everyone"),
        method("fediht", label="fediht, half of the clients", participation=0.5),
        *rivals_in_part(EXPERIMENT, [("everyone", 1.0), ("half of the clients", 0.5), ("a tenth of the clients", 0.1)]),
    ),
    full=Effort(local_steps=1_600, seeds=2),
    quick=Effort(local_steps=500, seeds=1),
    depends_on_seed=True,
    experiment=EXPERIMENT,
    quantities=[
        Quantity("test_accuracy", "accuracy, %", 1, 100),
        Quantity("train_loss", "train loss", 4),
        Quantity("control_relative", "sum of h, relative, 1e-6", 2, 1e6),
        Quantity("bits", "Mbit per client, mean", 2, 1e-6),
    ],
    panels=[
        Panel("test_accuracy", "test accuracy", against="round", lowest=0.5),
        Panel("train_loss", "train loss", against="round", logarithmic=True),
        Panel("control_relative", "norm of the mean of h over the mean norm", against="round", logarithmic=True),
    ],
    remarks=[STAND_IN],
)
