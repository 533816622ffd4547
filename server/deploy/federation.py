"""A deployed run: the strategy on real clients, kept by a recorder."""

from __future__ import annotations

from flwr.serverapp import Grid

from common.experiment.experiment import Experiment
from common.learning.task import Problem
from common.messages.messages import Run
from server.link.hub import Hub
from server.runs.journal import JournalEntry
from server.runs.recorder import Recorder
from strategies.flower.strategy import AlgorithmStrategy
from strategies.flower.terms import Terms


class Federation:
    """An experiment on whatever clients a grid brings."""

    def __init__(
        self,
        experiment: Experiment,
        problem: Problem,
        terms: Terms,
        recorder: Recorder,
        resume_from: JournalEntry | None = None,
    ) -> None:
        self._experiment = experiment
        self._problem = problem
        self._recorder = recorder
        self._is_new = resume_from is None
        checkpoint = resume_from.checkpoint if resume_from else None
        self._strategy = AlgorithmStrategy(experiment, problem, terms, listener=recorder, resume_from=checkpoint)

    def run_on(self, hub: Hub) -> None:
        """Run on the clients that join our own link."""
        with hub.run(Run(experiment=self._experiment, name=self._recorder.run)) as grid:
            self.run(grid)
            grid.summary = f"the run is finished, after {self._experiment.rounds} rounds"

    def run(self, grid: Grid) -> None:
        """Run on the nodes of any Flower grid."""
        strategy = self._strategy
        if self._is_new:
            self._recorder.begin(strategy.checkpoint)
        strategy.start(grid, strategy.initial_arrays, num_rounds=self._experiment.rounds)
        self._recorder.finish(self._problem, strategy.algorithm.evaluated(strategy.state))
