"""Table 2 of the paper: what a client uploads until R^2 on BlogFeedback reaches a level, at 90 % sparsity."""

from __future__ import annotations

from server.research.studies.shared.blogfeedback import METHODS_ON_BLOGS, QUICK_ON_BLOGS, TO_THE_LEVELS
from server.research.studies.shared.rivals import rivals_on
from server.research.study_kinds import NEVER, CostStudy

FEWEST_BITS = "blogfeedback-90-fewest-bits"
STUDY = CostStudy(
    title="BlogFeedback, 90 % sparsity: uploads of a client until R² reaches a level (Table 2)",
    methods=(*METHODS_ON_BLOGS, *rivals_on(FEWEST_BITS)),
    full=TO_THE_LEVELS,
    quick=QUICK_ON_BLOGS,
    depends_on_seed=False,
    experiment=FEWEST_BITS,
    metric="test_r2",
    levels={"R² 0.2": 0.2, "R² 0.225": 0.225, "R² 0.25": 0.25},
    lowest=0.0,
    paper={
        "final_topk": (1.16, 1.44, NEVER),
        "fedht": (14.8, NEVER, NEVER),
        "fediht": (2.49, NEVER, NEVER),
        "server_pruning": (0.73, NEVER, NEVER),
        "randprox_l1": (0.18, 0.25, NEVER),
        "sparse_proxskip_local": (0.13, 0.21, 0.76),
        "sparse_proxskip": (0.07, 0.09, 0.13),
    },
)
