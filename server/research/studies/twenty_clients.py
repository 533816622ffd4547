"""Beyond the paper: few clients with few examples and a small model, at several densities."""

from __future__ import annotations

from server.research.study import Effort, Method, Panel, StudyFigure, method
from server.research.study_kinds import EndStudy, Quantity

CLIENTS = "clients=20"


def _at(name: str, density: float, *settings: str) -> Method:
    label = ", ".join([name, f"density {density}", *settings])
    return method(name, CLIENTS, f"algorithm.density={density}", *settings, label=label)


STUDY = EndStudy(
    title="Twenty clients: digits, a model of 650 weights",
    methods=(
        *(_at("sparse_proxskip", density) for density in (0.05, 0.1, 0.2, 0.3, 0.5)),
        _at("sparse_proxskip", 0.1, "codec.precision=grid"),
        _at("sparse_proxskip", 0.3, "codec.precision=grid"),
        _at("sparse_proxskip", 0.1, "schedule.period=5"),
        _at("sparse_proxskip", 0.1, "schedule.period=50"),
        *(_at("fediht", density) for density in (0.1, 0.3)),
        method("fedavg", CLIENTS),
    ),
    full=Effort(local_steps=2_200, seeds=3),
    quick=Effort(local_steps=440, seeds=1, evaluations=10),
    depends_on_seed=True,
    by_sparsity={"20 clients": "demo"},
    quantities=[Quantity("test_accuracy", "accuracy, %", 1, 100, evaluations=3)],
    drawn=[StudyFigure("curves", "20 clients", [Panel("test_accuracy", "test accuracy", lowest=0.5)])],
)
