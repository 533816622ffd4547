"""An experiment: one YAML file, read into frozen dataclasses, that says everything a run depends on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from common.experiment.config import to_mapping
from common.experiment.plain_yaml import write_yaml
from common.learning.data import DataFolder
from common.learning.task import OwnDataTask, Problem, Task
from common.ranges import Range
from common.rounds.algorithm import Algorithm
from common.rounds.rounding import grid_step
from common.rounds.schedule import Schedule, local_steps
from common.rounds.state import MOST_CLIENTS, Precision, RoundPlan

Count = Annotated[int, Range(at_least=1, at_most=10**9)]
EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Codec:
    """The section `codec`: how uploads are written."""

    precision: Precision = "bfloat16"
    grid_bits: Annotated[int, Range(at_least=0, at_most=16)] = 2  # how far the grid's step is below TopK's threshold
    encode_in_simulation: bool = True  # false is faster; bytes are not counted then


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that a run depends on, besides the data itself."""

    name: str
    seed: Annotated[int, Range(at_least=0, below=2**64)] = 0
    rounds: Count
    clients: Annotated[int, Range(at_least=1, at_most=MOST_CLIENTS)]
    evaluate_every_rounds: Count = 1
    task: Task
    algorithm: Algorithm
    schedule: Schedule = field(default_factory=Schedule)
    codec: Codec = field(default_factory=Codec)

    def __post_init__(self) -> None:
        if not EXPERIMENT_NAME.fullmatch(self.name):
            raise ValueError(
                f"name = {self.name!r} must be usable as a folder's: letters, digits and . _ - (at most 100)"
            )

    def plan(self, round_number: int, model: Tensor | None = None) -> RoundPlan:
        """Return the plan of a round (counted from 1) that starts from a model, with all clients.

        A grid's step is taken from the model; where that has none yet, or is not known, values go as bfloat16.
        """
        precision, density = self.codec.precision, self.algorithm.round_density(round_number, self.rounds)
        step = None
        if precision == "grid":
            step = None if model is None else grid_step(model, density, self.codec.grid_bits)
            precision = "bfloat16" if step is None else precision
        return RoundPlan(
            round=round_number,
            local_steps=local_steps(self.schedule, self.seed, round_number),
            probability=self.schedule.probability,
            learning_rate=self.algorithm.learning_rate,
            density=density,
            precision=precision,
            step=step or 0.0,
            seed=self.seed,
            cohort=self.clients,
            seats=range(self.clients),
        )

    def load(self, data: DataFolder, device: torch.device) -> Problem:
        """Load the data of all clients, for a simulation."""
        return self.task.load(data, clients=self.clients, seed=self.seed, device=device)

    def load_for_server(self, data: Path | None, device: torch.device) -> Problem:
        """Load what a server needs: all of a public data set, and nothing where clients have their own."""
        if isinstance(self.task, OwnDataTask):
            return self.task.problem([], clients=self.clients, seed=self.seed, device=device)
        return self.load(DataFolder.choose(data), device)

    def is_evaluated(self, round_number: int) -> bool:
        """Say whether the metrics are computed after this round; after the last one they always are."""
        return round_number == self.rounds or round_number % self.evaluate_every_rounds == 0

    def to_yaml(self) -> str:
        """Return the experiment as a file that gives the same experiment again."""
        return write_yaml(to_mapping(self))
