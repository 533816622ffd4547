"""A run of the strategy on any grid, and all that it says of itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from flwr.serverapp import Grid
from torch import Tensor

from common.experiment.experiment import Experiment
from common.learning.data import DataFolder
from common.learning.task import Problem
from common.rounds.ledger import Checkpoint
from common.rounds.records import RoundRecord
from strategies.flower.listener import Listener
from strategies.flower.strategy import AlgorithmStrategy
from strategies.flower.terms import Terms

CPU = torch.device("cpu")


def load(experiment: Experiment) -> Problem:
    return experiment.load(DataFolder.choose(None), CPU)


class Witness(Listener):
    """Runs a strategy, keeps what it says, and does what a test wants to happen after a round, or at a word."""

    def __init__(
        self,
        experiment: Experiment,
        terms: Terms | None = None,
        *,
        after: Callable[[RoundRecord], None] = lambda _: None,
        heard: Callable[[str], None] = lambda _: None,
        resume_from: Checkpoint | None = None,
        problem: Problem | None = None,
    ) -> None:
        self.records: list[RoundRecord] = []
        self.said: list[str] = []
        self.journal = resume_from
        self._after = after
        self._heard = heard
        self.strategy = AlgorithmStrategy(
            experiment, problem or load(experiment), terms, listener=self, resume_from=resume_from
        )

    def run(self, grid: Grid) -> Witness:
        self.strategy.start(grid, self.strategy.initial_arrays, num_rounds=self.strategy.experiment.rounds, timeout=120)
        return self

    def on_round(self, record: RoundRecord, checkpoint: Checkpoint) -> None:
        self.records.append(record)
        self.journal = checkpoint
        self._after(record)

    def on_recentring(self, checkpoint: Checkpoint) -> None:
        self.journal = checkpoint

    def say(self, text: str) -> None:
        self.said.append(text)
        self._heard(text)

    @property
    def model(self) -> Tensor:
        return self.strategy.state.model

    @property
    def counted(self) -> list[int]:
        return [record.clients_counted for record in self.records]

    @property
    def audits(self) -> list[float]:
        return [record.control_sum_norm for record in self.records if record.control_sum_norm is not None]
