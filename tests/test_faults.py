"""What goes wrong in a federation, without a network: the sum of the control variates stays zero all the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as given_by

from bench.loopback import Fate, LoopbackClient, LoopbackGrid
from common.experiment import Experiment, load_experiment
from common.ledger import Ledger
from common.types import Checkpoint, RoundRecord
from common.wire import Run
from strategies.flower import AlgorithmStrategy
from tests.processes import load

CLIENTS = 4
VICTIM = 2  # a node; its client is client-1
ZERO_SUM = ["sparse_proxskip", "sparse_proxskip_local", "scaffold", "hybrid"]


@pytest.fixture(autouse=True, scope="module")
def _no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strategies.flower.FIRST_PAUSE_SECONDS", 0.0)
        yield


def experiment_of(name: str = "sparse_proxskip", rounds: int = 12) -> Experiment:
    return load_experiment(
        "digits", [f"clients={CLIENTS}", f"rounds={rounds}", "schedule.period=3", f"algorithm.name={name}"]
    )


class Trial:
    """A run on clients in this process, audited after every round."""

    def __init__(
        self,
        experiment: Experiment,
        state: Path | None,
        fate: Callable[[int], Fate] = lambda _: Fate.ANSWERED,
        after: Mapping[int, Callable[[Trial], None]] | None = None,
        minimum_clients: int | None = None,
        evict_after_rounds: int | None = None,
        resume_from: Checkpoint | None = None,
    ) -> None:
        run = Run(experiment=experiment, name="trial")
        self.clients = {index + 1: LoopbackClient(index, state, run) for index in range(CLIENTS)}
        self.grid = LoopbackGrid(dict(self.clients), fate)
        self.records: list[RoundRecord] = []
        self.said: list[str] = []
        self._after = after or {}
        self.strategy = AlgorithmStrategy(
            experiment,
            load(experiment).initial_state(),
            audit_every_rounds=1,
            on_round=self._on_round,
            say=self.said.append,
            minimum_clients=minimum_clients,
            evict_after_rounds=evict_after_rounds,
            resume_from=resume_from,
        )

    def _on_round(self, record: RoundRecord) -> None:
        self.records.append(record)
        if record.round in self._after:
            self._after[record.round](self)

    def run(self) -> Trial:
        rounds = self.strategy.experiment.rounds
        self.strategy.start(self.grid, self.strategy.initial_arrays, num_rounds=rounds)
        return self

    @property
    def audits(self) -> list[float]:
        return [record.control_sum_norm for record in self.records if record.control_sum_norm is not None]


@pytest.mark.parametrize("name", ZERO_SUM)
def test_a_client_whose_folder_was_deleted_starts_afresh_and_the_others_are_re_centred(
    name: str, tmp_path: Path
) -> None:
    def lose_it(trial: Trial) -> None:
        shutil.rmtree(tmp_path)  # the others are resident: theirs is in their process too, and saved again
        trial.clients[VICTIM].kill()

    trial = Trial(experiment_of(name), tmp_path, after={5: lose_it}).run()
    assert [record.clients_counted for record in trial.records] == [CLIENTS] * 12
    assert sum("client-1 has lost its control variate" in text for text in trial.said) == 1
    assert len(trial.audits) == 12
    assert max(trial.audits) < 1e-5
    assert trial.strategy.checkpoint.ledger.recentrings == 1
    assert not trial.strategy.checkpoint.ledger.awaiting


@pytest.mark.parametrize("name", ZERO_SUM)
def test_a_client_gone_for_good_is_given_up_and_comes_back_as_a_new_one(name: str, tmp_path: Path) -> None:
    def leave(trial: Trial) -> None:
        del trial.grid.clients[VICTIM]

    def come_back(trial: Trial) -> None:
        trial.grid.clients[VICTIM] = trial.clients[VICTIM]

    after = {3: leave, 9: come_back}
    trial = Trial(experiment_of(name), tmp_path, after=after, minimum_clients=3, evict_after_rounds=3).run()
    assert [record.clients_counted for record in trial.records] == [4, 4, 4, 3, 3, 3, 3, 3, 3, 4, 4, 4]
    audits = {record.round: record.control_sum_norm for record in trial.records}
    assert [number for number, audit in audits.items() if audit is None] == [4, 5, 6]  # while it may come back
    assert max(trial.audits) < 1e-5
    assert sum("client-1 was not counted in 3 rounds" in text for text in trial.said) == 1


def test_a_client_that_is_back_in_time_settles_its_old_upload(tmp_path: Path) -> None:
    def leave(trial: Trial) -> None:
        del trial.grid.clients[VICTIM]

    def come_back(trial: Trial) -> None:
        trial.clients[VICTIM].kill()
        trial.grid.clients[VICTIM] = trial.clients[VICTIM]

    after = {3: leave, 8: come_back}
    trial = Trial(experiment_of(), tmp_path, after=after, minimum_clients=3, evict_after_rounds=6).run()
    assert [record.clients_counted for record in trial.records] == [4, 4, 4, 3, 3, 3, 3, 3, 4, 4, 4, 4]
    assert trial.records[-1].control_sum_norm is not None
    assert max(trial.audits) < 1e-5
    assert trial.strategy.checkpoint.ledger.recentrings == 0


@settings(max_examples=25, deadline=None)
@given(
    fates=given_by.lists(given_by.sampled_from(Fate), min_size=30, max_size=80),
    name=given_by.sampled_from(ZERO_SUM),
)
def test_whatever_is_lost_the_sum_stays_zero(
    fates: list[Fate], name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    left = iter(fates)
    trial = Trial(
        experiment_of(name, rounds=8),
        tmp_path_factory.mktemp("state"),
        fate=lambda _: next(left, Fate.ANSWERED),
        minimum_clients=1,
    ).run()
    assert len(trial.audits) == 8
    assert max(trial.audits) < 1e-5


def test_a_round_that_waits_for_everybody_gives_the_undisturbed_model(tmp_path: Path) -> None:
    calm = Trial(experiment_of(), None).run()
    fates = iter([Fate.KILLED, Fate.KILLED_AFTER, Fate.LOST, Fate.ANSWER_LOST] * 6)
    troubled = Trial(experiment_of(rounds=12), tmp_path, fate=lambda _: next(fates, Fate.ANSWERED)).run()
    assert troubled.strategy.state.model.equal(calm.strategy.state.model)


def test_a_ledger_keeps_what_members_have_not_settled() -> None:
    one, two, three = (torch.full((2,), float(number)) for number in (1, 2, 3))
    ledger = Ledger().after_round(1, ["a", "b"], one).after_round(2, ["a"], two).after_round(3, ["a"], three)
    assert ledger.counted == {"a": 3, "b": 1}
    assert ledger.averages.keys() == {1, 3}
    assert ledger.average_for("b") is one
    assert ledger.average_for("stranger") is None
    assert ledger.overdue(4, 3) == []
    assert ledger.overdue(4, 2) == ["b"]
    left = ledger.without("b")
    assert (left.counted, list(left.averages), left.off_centre) == ({"a": 3}, [3], True)
    mended = left.recentred(one)
    assert (mended.off_centre, mended.recentrings, mended.awaiting) == (False, 1, frozenset({"a"}))
    done = mended.delivered("a")
    assert (done.shift, done.awaiting) == (None, frozenset())
    assert left.without("a") == Ledger(recentrings=0)


def test_a_run_goes_on_without_a_client_that_was_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the server nobody waits for it for ever, and the sum stays zero."""
    monkeypatch.setattr("strategies.flower.RETURN_SECONDS", 0.2)

    class CrashError(Exception):
        """The server's end."""

    def crash(_: Trial) -> None:
        raise CrashError

    def leave(trial: Trial) -> None:
        del trial.grid.clients[VICTIM]

    first = Trial(experiment_of(), tmp_path, after={3: leave, 5: crash}, minimum_clients=3, evict_after_rounds=3)
    with pytest.raises(CrashError):
        first.run()
    second = Trial(
        experiment_of(), tmp_path, minimum_clients=3, evict_after_rounds=3, resume_from=first.strategy.checkpoint
    )
    leave(second)
    second.run()
    assert [record.clients_counted for record in second.records] == [3] * 7
    assert second.records[-1].control_sum_norm is not None
    assert max(second.audits) < 1e-5
