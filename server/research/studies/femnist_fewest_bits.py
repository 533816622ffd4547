"""Table 3 of the paper, read another way: every method with the settings that need the fewest bits."""

from __future__ import annotations

from server.research.studies.shared.femnist import (
    FULL_ON_WRITERS,
    METHODS_ON_WRITERS,
    QUICK_ON_WRITERS,
    STAND_IN,
    TABLE_3,
)
from server.research.study_kinds import CostStudy

STUDY = CostStudy(
    title="Handwriting by writer, 90 % sparsity: uploads to a level, with settings for the fewest bits (Table 3)",
    methods=METHODS_ON_WRITERS,
    full=FULL_ON_WRITERS,
    quick=QUICK_ON_WRITERS,
    depends_on_seed=True,
    experiment="femnist-90-fewest-bits",
    metric="test_accuracy",
    levels={"80 %": 0.8, "82.5 %": 0.825, "85 %": 0.85},
    lowest=0.5,
    paper=TABLE_3,
    remarks=[STAND_IN],
)
