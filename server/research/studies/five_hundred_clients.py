"""Beyond the paper: many clients, of whom a fifth takes part in a round."""

from __future__ import annotations

from server.research.studies.shared.femnist import STAND_IN
from server.research.study import Effort, Method, Panel, StudyFigure, method
from server.research.study_kinds import EndStudy, Quantity

CLIENTS = "clients=500"


def _a_fifth(name: str, *settings: str) -> Method:
    label = ", ".join([name, *settings, "a fifth of the clients"])
    return method(name, CLIENTS, *settings, label=label, participation=0.2)


STUDY = EndStudy(
    title="Five hundred clients, of whom a fifth takes part in a round: handwriting by writer",
    methods=(
        method("sparse_proxskip", CLIENTS, label="sparse_proxskip, everyone"),
        _a_fifth("sparse_proxskip"),
        _a_fifth("sparse_proxskip", "codec.precision=grid"),
        _a_fifth("sparse_proxskip_local"),
        _a_fifth("fediht"),
        _a_fifth("tamuna"),
    ),
    full=Effort(local_steps=1_600, seeds=3),
    quick=Effort(local_steps=160, seeds=1, evaluations=4),
    depends_on_seed=True,
    by_sparsity={"500 clients, 90 %": "femnist-90"},
    quantities=[
        Quantity("test_accuracy", "accuracy, %", 1, 100, evaluations=3),
        Quantity("control_relative", "sum of h, relative, 1e-6", 2, 1e6),
    ],
    drawn=[
        StudyFigure(
            "curves",
            "500 clients, 90 %",
            [Panel("test_accuracy", "test accuracy", lowest=0.6)],
        )
    ],
    remarks=[STAND_IN],
)
