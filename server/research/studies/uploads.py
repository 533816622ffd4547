"""What uploads cost in each precision, all bits included, and what becomes of the model: ours, not the paper's."""

from __future__ import annotations

from server.research.studies.shared.precisions import BITS, bits_and_accuracy, in_each_precision, score
from server.research.study import Effort
from server.research.study_kinds import EndStudy

STUDY = EndStudy(
    title="Uploads in each precision",
    methods=in_each_precision(2),
    full=Effort(
        local_steps=800,
        seeds=3,
        evaluations=20,
        rounds={"digits": 100, "femnist-90": 40, "femnist-99": 40, "blogfeedback-90": 160},
    ),
    quick=Effort(local_steps=160, seeds=1, evaluations=4),
    depends_on_seed=True,
    by_sparsity={
        "digits, 90 %": "digits",
        "writers, 90 %": "femnist-90",
        "writers, 99 %": "femnist-99",
        "BlogFeedback, 90 %": "blogfeedback-90",
    },
    quantities=[score("test_accuracy", "accuracy, %"), score("test_r2", "R², %"), BITS],
    drawn=[bits_and_accuracy("writers, 90 %", 0.75)],
)
