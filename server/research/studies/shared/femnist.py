"""What the studies on handwriting by writer share."""

from __future__ import annotations

from server.research.study import Effort, method
from server.research.study_kinds import NEVER

METHODS_ON_WRITERS = (
    method("final_topk"),
    method("fedht"),
    method("fediht"),
    method("server_pruning"),
    method("sparse_proxskip_local"),
    method("sparse_proxskip"),
    method("hybrid"),
    method("sparse_proxskip", "codec.precision=bfloat16", label="sparse_proxskip, bfloat16"),
    method("sparse_proxskip", "codec.precision=grid", label="sparse_proxskip, grid"),
)
TABLE_3 = {  # the paper's Mbit to 80, 82.5 and 85 %
    "final_topk": (6.0, 16.6, 92.4),
    "fedht": (4.0, 8.54, 45.7),
    "fediht": (0.8, 1.61, 13.0),
    "server_pruning": (2.0, 3.57, NEVER),
    "sparse_proxskip_local": (0.5, 0.55, 2.52),
    "sparse_proxskip": (0.1, 0.18, 0.36),
}
FULL_ON_WRITERS = Effort(local_steps=800, seeds=2, evaluations=100)
QUICK_ON_WRITERS = Effort(local_steps=400, seeds=1, evaluations=40)
STAND_IN = "The paper's numbers are of FEMNIST; MNIST by writer stands in where that is not at hand."
