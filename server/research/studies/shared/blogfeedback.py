"""What the two studies on BlogFeedback share."""

from __future__ import annotations

from server.research.study import Effort, method

METHODS_ON_BLOGS = (
    method("final_topk"),
    method("fedht"),
    method("fediht"),
    method("server_pruning"),
    method("randprox_l1"),
    method("sparse_proxskip_local"),
    method("sparse_proxskip"),
    method("hybrid"),
    method("sparse_proxskip", "codec.precision=bfloat16", label="sparse_proxskip, bfloat16"),
    method("sparse_proxskip", "codec.precision=grid", label="sparse_proxskip, grid"),
)
TO_THE_END = Effort(local_steps=60_000, seeds=3, most_rounds=10_000)  # the paper has 10,000 of every method
TO_THE_LEVELS = Effort(local_steps=8_000, seeds=3, evaluations=200)  # often, so that costs are exact
QUICK_ON_BLOGS = Effort(local_steps=2_500, seeds=1, evaluations=40)
