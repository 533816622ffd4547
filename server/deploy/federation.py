"""A deployed run: the strategy on a fleet of real clients, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from common.experiment.experiment import Experiment
from common.learning.task import OwnDataProblem, Problem
from common.messages.messages import Run, pack_run
from common.rounds.records import RoundRecord
from common.storage.disk import when_there_is_room
from server.link.fleet import Fleet
from server.runs.journal import Entry, Journal
from server.runs.run_folder import RunFolder
from strategies.flower.strategy import AlgorithmStrategy
from strategies.flower.terms import Terms


class Federation:
    """An experiment on whatever clients a grid brings, recorded in a run folder."""

    def __init__(
        self,
        experiment: Experiment,
        problem: Problem,
        folder: RunFolder,
        terms: Terms,
        *,
        resume_from: Entry | None = None,
        show: Callable[[RoundRecord], None],
        say: Callable[[str], None],
    ) -> None:
        self._experiment = experiment
        self._problem = problem
        self._folder = folder
        self._show = show
        self._say = say
        self._journal = Journal(folder.path, experiment)
        self._run = resume_from.run if resume_from else uuid4().hex
        self._is_new = resume_from is None
        self._newest = resume_from.record if resume_from else None
        if resume_from:
            when_there_is_room(lambda: folder.go_back_to(self._newest), say)
        self._strategy = AlgorithmStrategy(
            experiment,
            problem.initial_state(),
            minimum_clients=terms.minimum_clients,
            deadline_seconds=terms.deadline_seconds,
            evict_after_rounds=terms.evict_after_rounds,
            largest_norm=terms.largest_norm,
            evaluate_on_clients=terms.evaluate_on_clients,
            own_data=problem if isinstance(problem, OwnDataProblem) else None,
            audit_every_rounds=terms.audit_every_rounds,
            resume_from=resume_from.checkpoint if resume_from else None,
            on_round=self._record,
            on_recentring=self._write_journal,
            say=say,
        )

    def run_on_fleet(self, fleet: Fleet) -> None:
        """Run on the nodes that join our own fleet."""
        with fleet.run(pack_run(Run(experiment=self._experiment, name=self._run))) as grid:
            self.run(grid)

    def run(self, grid: Grid) -> None:
        """Run on the nodes of any Flower grid."""
        strategy = self._strategy
        if self._is_new:  # so that clients know the run by this name even if we are killed in the first round
            self._write_journal()
        strategy.start(grid, strategy.initial_arrays, num_rounds=self._experiment.rounds, evaluate_fn=self._evaluate)
        final = strategy.algorithm.evaluated(strategy.state)
        when_there_is_room(lambda: self._folder.save_model(final), self._say)

    def _evaluate(self, number: int, _: ArrayRecord) -> MetricRecord | None:
        if not self._experiment.is_evaluated(number) or isinstance(self._problem, OwnDataProblem):
            return None
        return MetricRecord(dict(self._problem.evaluate(self._strategy.algorithm.evaluated(self._strategy.state))))

    def _record(self, record: RoundRecord) -> None:
        self._newest = record
        self._write_journal()
        when_there_is_room(lambda: self._folder.add_round(record), self._say)
        self._show(record)

    def _write_journal(self) -> None:
        entry = Entry(run=self._run, checkpoint=self._strategy.checkpoint, record=self._newest)
        when_there_is_room(lambda: self._journal.write(entry), self._say)
