"""Table 3 of the paper: what a client uploads until accuracy on handwriting reaches a level, at 90 % sparsity.

Every method has its settings for accuracy, as the paper tunes; femnist_fewest_bits is the other reading.
"""

from __future__ import annotations

from server.research.studies.shared.femnist import METHODS_ON_WRITERS, QUICK_ON_WRITERS, STAND_IN, TABLE_3
from server.research.studies.shared.rivals import rivals_on
from server.research.study import Effort
from server.research.study_kinds import CostStudy, Quantity

EXPERIMENT = "femnist-90"
METHODS = tuple(one for one in METHODS_ON_WRITERS if "," not in one.label)  # all in float32
STUDY = CostStudy(
    title="Handwriting by writer, 90 % sparsity: uploads of a client until accuracy reaches a level (Table 3)",
    methods=(*METHODS, *rivals_on(EXPERIMENT)),
    full=Effort(local_steps=1_600, seeds=3, evaluations=400),  # often, so that costs are exact
    quick=QUICK_ON_WRITERS,
    depends_on_seed=True,
    experiment=EXPERIMENT,
    metric="test_accuracy",
    levels={"80 %": 0.8, "82.5 %": 0.825, "85 %": 0.85, "87 %": 0.87, "88 %": 0.88},
    lowest=0.5,
    paper=TABLE_3,
    ends=[Quantity("test_accuracy", "accuracy, %", 1, 100, evaluations=5)],
    remarks=[STAND_IN],
)
