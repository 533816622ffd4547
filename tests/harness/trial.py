"""A run on clients in this process, which a test can disturb, audited after every round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Message

from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.messages import Run
from common.rounds.ledger import Checkpoint
from common.rounds.records import RoundRecord
from strategies.flower.terms import Terms
from tests.harness.loopback import Fate, LoopbackClient, LoopbackGrid
from tests.harness.witness import Witness

CLIENTS = 4
VICTIM = 2  # a node; its client is client-1


def experiment_of(name: str = "sparse_proxskip", rounds: int = 12) -> Experiment:
    return load_experiment(
        "digits", [f"clients={CLIENTS}", f"rounds={rounds}", "schedule.period=3", f"algorithm.name={name}"]
    )


class Trial(Witness):
    """A run on clients in this process, audited after every round."""

    def __init__(
        self,
        experiment: Experiment,
        state: Path | None,
        fate: Callable[[Message], Fate] = lambda _: Fate.ANSWERED,
        after: Mapping[int, Callable[[Trial], None]] | None = None,
        resume_from: Checkpoint | None = None,
        **terms: Any,  # noqa: ANN401 - of Terms
    ) -> None:
        self._after_rounds = after or {}
        super().__init__(
            experiment,
            Terms(**{"audit_every_rounds": 1, **terms}),
            after=self._do_after,
            resume_from=resume_from,
        )
        run = Run(experiment=experiment, name="trial")
        self.clients = {index + 1: LoopbackClient(index, state, run) for index in range(CLIENTS)}
        self.grid = LoopbackGrid(dict(self.clients), fate)

    def _do_after(self, record: RoundRecord) -> None:
        if record.round in self._after_rounds:
            self._after_rounds[record.round](self)

    def go(self) -> Trial:
        self.run(self.grid)
        return self
