"""Table 4 of the paper: test accuracy of softmax regression on handwriting by writer."""

from __future__ import annotations

from server.research.studies.shared.femnist import FULL_ON_WRITERS, METHODS_ON_WRITERS, QUICK_ON_WRITERS, STAND_IN
from server.research.studies.shared.rivals import rivals_on
from server.research.study import Panel, StudyFigure
from server.research.study_kinds import EndStudy, Quantity

BY_SPARSITY = {f"{sparsity} %": f"femnist-{sparsity}" for sparsity in (80, 90, 95, 98, 99)}
STUDY = EndStudy(
    title="Handwriting by writer: what methods reach (Table 4)",
    methods=(*METHODS_ON_WRITERS, *rivals_on(*BY_SPARSITY.values())),
    full=FULL_ON_WRITERS,
    quick=QUICK_ON_WRITERS,
    depends_on_seed=True,
    by_sparsity=BY_SPARSITY,
    quantities=[
        Quantity(
            "test_accuracy",
            "accuracy, %",
            1,
            100,
            {
                "final_topk": (84.7, 79.9, 69.6, 40.1, 25.5),
                "fedht": (86.6, 85.7, 84.7, 76.6, 66.4),
                "fediht": (86.8, 85.6, 82.7, 74.6, 65.4),
                "server_pruning": (77.9, 77.5, 76.8, 72.2, 64.7),
                "sparse_proxskip_local": (86.7, 86.1, 84.7, 78.9, 70.7),
                "sparse_proxskip": (86.9, 86.7, 85.0, 79.3, 71.7),
            },
        )
    ],
    drawn=[
        StudyFigure(
            "curves-99",
            "99 %",
            [
                Panel("test_accuracy", "test accuracy (99 % sparsity)", lowest=0.0),
                Panel("train_loss", "train loss", logarithmic=True),
            ],
        )
    ],
    remarks=[STAND_IN],
)
