"""The same as `uploads` for a small ResNet, whose scores swing by points from round to round and from seed to seed."""

from __future__ import annotations

from server.research.studies.shared.precisions import BITS, bits_and_accuracy, in_each_precision, score
from server.research.study import Effort
from server.research.study_kinds import EndStudy

LAST = 10  # evaluations whose mean is shown

STUDY = EndStudy(
    title="Uploads of a network in each precision",
    methods=in_each_precision(3, "task.statistics_samples=1000"),
    full=Effort(local_steps=480, seeds=3, evaluations=20, rounds={"cifar10-small": 30}),
    quick=Effort(local_steps=64, seeds=1, evaluations=4),
    depends_on_seed=True,
    by_sparsity={"CIFAR-10, 90 %": "cifar10-small"},
    quantities=[
        score("test_accuracy", "accuracy, %", LAST),
        score("test_accuracy_anew", "accuracy with statistics of BatchNorm anew, %", LAST),
        BITS,
    ],
    drawn=[bits_and_accuracy("CIFAR-10, 90 %", 0.0)],
)
