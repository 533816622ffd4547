"""What is known of a run before its first round, for those who watch it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from common.experiment import plugins

if TYPE_CHECKING:  # they bring torch, which is slow to import
    from common.experiment.experiment import Experiment
    from common.learning.task import Problem

How = Literal["deployed", "simulated"]


@dataclass(frozen=True, kw_only=True)
class About:
    """A run, in words."""

    name: str
    how: How
    task: str
    algorithm: str
    data: str
    metric: str
    weights: int
    rounds: int
    clients: int
    folder: Path
    command: str  # that goes on with it; nothing where none can

    @classmethod
    def of(
        cls, experiment: Experiment, problem: Problem, *, how: How, weights: int, folder: Path, command: str
    ) -> About:
        """Take from an experiment and its data what is shown of them."""
        return cls(
            name=experiment.name,
            how=how,
            task=plugins.name_of(experiment.task.plugin_package, type(experiment.task)),
            algorithm=plugins.name_of(experiment.algorithm.plugin_package, type(experiment.algorithm)),
            data=problem.data_name,
            metric=problem.metric,
            weights=weights,
            rounds=experiment.rounds,
            clients=experiment.clients,
            folder=folder,
            command=command,
        )
