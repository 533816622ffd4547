"""The paper's CIFAR-10 figure: a ResNet18 of small width, which a CPU can train; the paper's own is `cifar10`."""

from __future__ import annotations

from server.research.study import Effort, Panel, method
from server.research.study_kinds import CourseStudy, Quantity

STUDY = CourseStudy(
    title="CIFAR-10, a ResNet18 of width 8, 90 % sparsity (Section 4.3)",
    methods=tuple(
        method(name) for name in ("final_topk", "fediht", "server_pruning", "sparse_proxskip_local", "sparse_proxskip")
    ),
    full=Effort(local_steps=480, seeds=1, evaluations=15),
    quick=Effort(local_steps=48, seeds=1, evaluations=3),
    depends_on_seed=True,
    experiment="cifar10-small",
    quantities=[
        Quantity("test_accuracy", "accuracy, %", 1, 100),
        Quantity("train_loss", "train loss", 3),
        Quantity("bits", "Mbit per client", 2, 1e-6),
        Quantity("bytes", "sent, kB", 0, 1e-3),
    ],
    panels=[
        Panel("test_accuracy", "test accuracy"),
        Panel("train_loss", "train loss", logarithmic=True),
        Panel("control_sum", "norm of the sum of h", against="round", logarithmic=True),
    ],
)
