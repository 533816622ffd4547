"""A deployed run: the strategy on real clients, kept by a recorder."""

from __future__ import annotations

from flwr.serverapp import Grid

from common.experiment.experiment import Experiment
from common.learning.task import Problem
from common.messages.messages import Run
from server.link.desk import Desk
from server.link.hub import Hub
from server.runs.course import Course
from server.runs.journal import JournalEntry
from server.runs.now import ClientNow, RunNow
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
        course: Course,
        resume_from: JournalEntry | None = None,
    ) -> None:
        self._experiment = experiment
        self._problem = problem
        self._recorder = recorder
        self._course = course
        self._desk: Desk | None = None  # where our own link is what brings clients
        self._is_new = resume_from is None
        checkpoint = resume_from.checkpoint if resume_from else None
        self._strategy = AlgorithmStrategy(experiment, problem, terms, listener=recorder, resume_from=checkpoint)

    def run_on(self, hub: Hub) -> None:
        """Run on the clients that join our own link."""
        self._desk = hub.grid
        with hub.run(Run(experiment=self._experiment, name=self._recorder.run)) as grid:
            grid.counted = self._course.counted
            self.run(grid)
            score = f", {self._course.metric} {self._course.scores[-1]:.4f}" if self._course.scores else ""
            grid.summary = f"run finished: {self._experiment.rounds} rounds{score}"

    def run(self, grid: Grid) -> None:
        """Run on the nodes of any Flower grid."""
        strategy = self._strategy
        if self._is_new:
            self._recorder.begin(strategy.checkpoint)
        strategy.start(grid, strategy.initial_arrays, num_rounds=self._experiment.rounds)
        self._recorder.finish(self._problem, strategy.algorithm.evaluated(strategy.state))

    @property
    def weights(self) -> int:
        """Return how many the model has."""
        return self._strategy.state.model.numel()

    def now(self) -> RunNow:
        """Return what the run is at; those who watch it ask in threads of their own."""
        strategy, roster = self._strategy, self._strategy.members.roster
        stage, gathering = strategy.stage, roster.gathering
        return RunNow(
            state="gathering" if gathering else stage.name,
            round=stage.round,
            round_started=stage.started if stage.name == "training" else None,
            deadline_seconds=strategy.deadline_seconds,
            needed=strategy.needed,
            counted=strategy.counted if stage.name == "training" else 0,
            clients=self._clients_now(),
            gathering=gathering,
        )

    def _clients_now(self) -> dict[str, ClientNow]:
        """Return what the clients that the run knows do: strangers may be at the desk too."""
        if self._desk is None:
            return {}
        roster, seen = self._strategy.members.roster, self._desk.clients_now()
        clients = {name: seen.get(name, ClientNow("away")) for name in sorted(roster.identities)}
        return clients | {name: ClientNow("put out") for name in list(roster.put_out)}
