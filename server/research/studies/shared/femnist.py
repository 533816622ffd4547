"""What the two studies on handwriting by writer share."""

from __future__ import annotations

from server.research.study import Effort, method

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
FULL_ON_WRITERS = Effort(local_steps=800, seeds=2, evaluations=100)
QUICK_ON_WRITERS = Effort(local_steps=400, seeds=1, evaluations=40)
STAND_IN = "The paper's numbers are of FEMNIST; MNIST by writer stands in where that is not at hand."
