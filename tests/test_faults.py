"""What goes wrong in a federation, without a network: the sum of the control variates stays zero all the same."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from flwr.app import Message, MessageType
from flwr.serverapp.strategy import Strategy
from hypothesis import example, given, settings
from hypothesis import strategies as given_by
from torch import Tensor

from common.experiment.experiment import Codec
from common.messages.messages import Run
from common.rounds.history import History
from common.rounds.ledger import Checkpoint, Ledger
from common.rounds.mean import ControlSum
from common.rounds.records import RoundRecord
from common.rounds.state import ClientMemory, Precision, ServerState
from common.say import Event
from strategies.sparse_proxskip_arena import SparseProxSkipArena
from tests.harness.loopback import Fate, LoopbackClient
from tests.harness.trial import CLIENTS, VICTIM, Trial, experiment_of

DEALT_OR_SHARED = ["locodl", "tamuna", "sparse_proxskip_arena"]  # what clients send, or keep, depends on all of them
ZERO_SUM = ["sparse_proxskip", "sparse_proxskip_local", "scaffold", "hybrid", "fedcomloc_com", *DEALT_OR_SHARED]


@pytest.fixture(autouse=True, scope="module")
def _no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strategies.flower.strategy.FIRST_PAUSE_SECONDS", 0.0)
        for module in ("roster", "membership"):  # who lost its state is waited for
            patch.setattr(f"strategies.flower.{module}.GATHERING_SECONDS", 0.1)
        yield


@pytest.mark.parametrize("name", ZERO_SUM)
def test_a_client_whose_folder_was_deleted_starts_afresh_and_the_others_are_re_centred(
    name: str, tmp_path: Path
) -> None:
    def lose_it(trial: Trial) -> None:
        shutil.rmtree(tmp_path)  # the others are resident: theirs is in their process too, and saved again
        trial.clients[VICTIM].kill()

    trial = Trial(experiment_of(name), tmp_path, after={5: lose_it}).go()
    assert trial.counted == [CLIENTS] * 12
    assert sum("client-1 has lost its control variate" in text for text in trial.said) == 1
    events = [(text.kind, text.client) for text in trial.said if isinstance(text, Event)]
    assert [one for one in events if one[0] in ("given up", "re-centred")] == [
        ("given up", "client-1"),
        ("re-centred", ""),
    ]
    assert len(trial.audits) == 12
    assert max(trial.audits) < 1e-5
    assert trial.strategy.checkpoint.ledger.recentrings == 1
    spent = [record.traffic_beside_training.get("recentre") for record in trial.records]
    (recentred,) = [one for one in spent if one is not None]
    assert recentred.payload_bytes_up  # the controls of the others
    assert recentred.payload_bytes_down  # the question for them, and the shift
    assert not trial.strategy.checkpoint.ledger.awaiting


@pytest.mark.parametrize("name", ZERO_SUM)
def test_a_client_gone_for_good_is_given_up_and_comes_back_as_a_new_one(name: str, tmp_path: Path) -> None:
    def leave(trial: Trial) -> None:
        del trial.grid.clients[VICTIM]

    def come_back(trial: Trial) -> None:
        trial.grid.clients[VICTIM] = trial.clients[VICTIM]

    after = {3: leave, 9: come_back}
    trial = Trial(experiment_of(name), tmp_path, after=after, minimum_clients=3, evict_after_rounds=3).go()
    assert trial.counted == [4, 4, 4, 3, 3, 3, 3, 3, 3, 4, 4, 4]
    audits = {record.round: record.control_sum_norm for record in trial.records}
    assert [number for number, audit in audits.items() if audit is None] == [4, 5, 6]  # while it may come back
    assert max(trial.audits) < 1e-5
    assert sum("client-1 was not counted in 3 rounds" in text for text in trial.said) == 1


@pytest.mark.parametrize("name", ZERO_SUM)
def test_who_was_not_there_at_the_start_joins_when_it_comes(name: str, tmp_path: Path) -> None:
    def come(trial: Trial) -> None:
        trial.grid.clients[VICTIM] = trial.clients[VICTIM]

    trial = Trial(experiment_of(name), tmp_path, after={5: come}, minimum_clients=3)
    del trial.grid.clients[VICTIM]
    trial.go()
    assert trial.counted == [3] * 5 + [4] * 7
    assert len(trial.audits) == 12
    assert max(trial.audits) < 1e-5
    assert trial.strategy.checkpoint.ledger.recentrings == 0


def test_a_re_centring_and_new_members_are_owed_nothing(tmp_path: Path) -> None:
    """What rounding took from earlier means was owed to a sum that is no more."""
    seen: list[bool] = []

    def lose_it(trial: Trial) -> None:
        assert trial.strategy.checkpoint.rounded_off is not None
        shutil.rmtree(tmp_path)
        trial.clients[VICTIM].kill()

    class Watched(Trial):
        def on_recentring(self, checkpoint: Checkpoint) -> None:
            seen.append(checkpoint.rounded_off is None)
            super().on_recentring(checkpoint)

    Watched(experiment_of(rounds=6), tmp_path, after={3: lose_it}).go()
    assert seen == [True]


def test_a_client_that_was_away_for_too_long_is_given_up(tmp_path: Path) -> None:
    """It leaves in the third round; rounds are quick, and the time is up some of them later."""

    def leave(trial: Trial) -> None:
        del trial.grid.clients[VICTIM]

    rounds = {number: (lambda _: time.sleep(0.02)) for number in range(4, 12)}
    trial = Trial(experiment_of(), tmp_path, after={**rounds, 3: leave}, minimum_clients=3, evict_after_seconds=0.05)
    trial.go()
    assert sum("client-1 was away for 0.05 s" in text for text in trial.said) == 1
    assert trial.strategy.checkpoint.ledger.recentrings == 1
    assert trial.records[-1].control_sum_norm is not None
    assert max(trial.audits) < 1e-5


@pytest.mark.parametrize("name", ["sparse_proxskip", *DEALT_OR_SHARED])
def test_a_client_that_is_back_in_time_settles_its_old_upload(name: str, tmp_path: Path) -> None:
    """In an arena it also forgets what the others have forgotten while it was away."""

    def leave(trial: Trial) -> None:
        del trial.grid.clients[VICTIM]

    def come_back(trial: Trial) -> None:
        trial.clients[VICTIM].kill()
        trial.grid.clients[VICTIM] = trial.clients[VICTIM]

    after = {3: leave, 8: come_back}
    trial = Trial(experiment_of(name), tmp_path, after=after, minimum_clients=3, evict_after_rounds=6).go()
    assert trial.counted == [4, 4, 4, 3, 3, 3, 3, 3, 4, 4, 4, 4]
    assert trial.records[-1].control_sum_norm is not None
    assert max(trial.audits) < 1e-5
    assert trial.strategy.checkpoint.ledger.recentrings == 0


def test_who_has_forgotten_a_place_has_no_share_in_what_is_shifted_there() -> None:
    """Two members were counted in round 5, one only in round 3; the second place is in the arena since round 4."""
    arena = SparseProxSkipArena(learning_rate=0.1)
    state = ServerState(model=torch.zeros(2), control=torch.tensor([1.0, 4.0]))
    counted, controls = (5, 5, 3), torch.tensor([[3.0, 2.0], [1.0, 4.0], [2.0, 9.0]])

    def found(controls: Tensor) -> list[list[float]]:
        """Return the controls as round 6 finds them."""
        histories = [History(counted=number) for number in counted]
        memories = [ClientMemory(control=one, history=own) for one, own in zip(controls, histories, strict=True)]
        return [cast(Tensor, arena.forget(memory, state).control).tolist() for memory in memories]

    assert found(controls) == [[3, 2], [1, 4], [2, 0]]
    total = ControlSum()
    total.add(torch.tensor(found(controls)))
    shift = total.mean(arena.holders(state, counted))
    assert shift.tolist() == [2, 3]
    assert found(controls - shift) == [[1, -1], [-1, 1], [0, 0]]


@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("name", ["sparse_proxskip", *DEALT_OR_SHARED])
def test_who_was_not_counted_for_long_is_re_centred_with_the_others(name: str, late: int, tmp_path: Path) -> None:
    """In an arena it has forgotten places that the others have; its first shifts come too late by some rounds."""
    lost = [Fate.LOST] * late

    def fate(message: Message) -> Fate:
        if message.metadata.dst_node_id != VICTIM:
            return Fate.ANSWERED
        if message.metadata.message_type == "query.recentre":
            return lost.pop() if lost else Fate.ANSWERED
        is_away = message.metadata.message_type == MessageType.TRAIN and 4 <= int(message.metadata.group_id) <= 10
        return Fate.LOST if is_away else Fate.ANSWERED

    def lose_one(trial: Trial) -> None:
        shutil.rmtree(tmp_path)
        trial.clients[VICTIM + 1].kill()

    trial = Trial(experiment_of(name), tmp_path, fate, {6: lose_one, 8: lose_one}, minimum_clients=2).go()
    assert trial.counted[-2:] == [4, 4]
    assert trial.strategy.checkpoint.ledger.recentrings == 2
    assert trial.audits[-1] == trial.records[-1].control_sum_norm
    assert max(trial.audits) < 1e-5


class CrashError(Exception):
    """The server's end."""


class Storm:
    """Messages are lost, clients killed, robbed of their memory or given an old one; the server crashes; then calm."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - no secret
        self._folder = folder
        self.rages = True

    def fate(self, message: Message) -> Fate:
        if not self.rages:
            return Fate.ANSWERED
        draw = self._chance.random()
        if draw < 0.01:
            raise CrashError
        state = self._folder / str(message.metadata.dst_node_id)
        copy = state.with_suffix(".copy")
        if draw < 0.05 and state.exists():
            shutil.copytree(state, copy, dirs_exist_ok=True)
        elif draw < 0.08:
            shutil.rmtree(state, ignore_errors=True)
            if draw > 0.06 and copy.exists():
                shutil.copytree(copy, state)
            return Fate.KILLED
        return self._chance.choice(list(Fate)) if draw < 0.3 else Fate.ANSWERED


@settings(max_examples=16)
@given(seed=given_by.integers(0, 2**32), name=given_by.sampled_from(ZERO_SUM), minimum=given_by.integers(1, 3))
def test_whatever_happens_the_sum_is_zero_or_known_not_to_be(
    seed: int, name: str, minimum: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weather(seed, name, minimum, tmp_path_factory.mktemp("state"))


@pytest.mark.slow
@settings(max_examples=300)
@example(seed=307, name="sparse_proxskip_arena", minimum=1)
@given(seed=given_by.integers(0, 2**32), name=given_by.sampled_from(ZERO_SUM), minimum=given_by.integers(1, 3))
def test_whatever_happens_for_long_the_sum_is_zero_or_known_not_to_be(
    seed: int, name: str, minimum: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weather(seed, name, minimum, tmp_path_factory.mktemp("state"))


def weather(seed: int, name: str, minimum: int, folder: Path) -> None:
    """An audit is made only when nobody is known to be missing: then it must find zero."""
    storm, experiment = Storm(seed, folder), experiment_of(name)
    run = Run(experiment=experiment, name="trial")
    clients = {index + 1: LoopbackClient(index, folder / str(index + 1), run) for index in range(CLIENTS)}
    journal, records = None, dict[int, RoundRecord]()
    while len(records) < experiment.rounds:
        trial = Trial(experiment, None, storm.fate, minimum_clients=minimum, evict_after_rounds=3, resume_from=journal)
        trial.grid.clients = clients
        with suppress(CrashError):
            trial.go()
        journal = trial.journal
        records |= {record.round: record for record in trial.records}
        storm.rages = len(records) < experiment.rounds - 5
    audits = [record.control_sum_norm for record in records.values() if record.control_sum_norm is not None]
    assert max(audits, default=0.0) < 1e-5


@pytest.mark.parametrize("precision", ["float32", "grid"])
@pytest.mark.parametrize("name", ["sparse_proxskip", *DEALT_OR_SHARED])
def test_a_round_that_waits_for_everybody_gives_the_undisturbed_model(
    name: str, precision: Precision, tmp_path: Path
) -> None:
    experiment = replace(experiment_of(name), codec=Codec(precision=precision))
    calm = Trial(experiment, None).go()
    fates = iter([Fate.KILLED, Fate.KILLED_AFTER, Fate.LOST, Fate.ANSWER_LOST] * 6)

    def fate(message: Message) -> Fate:
        trains = message.metadata.message_type == MessageType.TRAIN
        return next(fates, Fate.ANSWERED) if trains else Fate.ANSWERED

    troubled = Trial(experiment, tmp_path, fate=fate).go()
    assert troubled.strategy.state.model.equal(calm.strategy.state.model)


@pytest.mark.parametrize("precision", ["float32", "grid"])
def test_who_finished_a_round_for_others_than_are_left_does_it_again(precision: Precision, tmp_path: Path) -> None:
    """In round 4 one client leaves and the answers of two are lost: the masks are dealt out anew to the three."""
    trial: Trial

    def fate(message: Message) -> Fate:
        node, first = message.metadata.dst_node_id, VICTIM in trial.grid.clients
        if message.metadata.message_type != MessageType.TRAIN or message.metadata.group_id != "4" or not first:
            return Fate.ANSWERED
        return Fate.ANSWERED if node == 1 else Fate.ANSWER_LOST

    def hear(text: str) -> None:
        if "round 4: only 1 of at least 3 clients answered" in text:
            del trial.grid.clients[VICTIM]

    def come_back(_: Trial) -> None:
        trial.grid.clients[VICTIM] = trial.clients[VICTIM]

    experiment = replace(experiment_of("tamuna"), codec=Codec(precision=precision))
    trial = Trial(experiment, tmp_path, fate, {6: come_back}, minimum_clients=3)
    trial._heard = hear
    trial.go()
    assert trial.counted == [4, 4, 4, 3, 3, 3, 4, 4, 4, 4, 4, 4]
    assert len(trial.audits) >= 9
    assert max(trial.audits) < 1e-5


def test_under_flowers_own_start_the_hooks_give_the_same_model_and_records(tmp_path: Path) -> None:
    ours = Trial(experiment_of(), tmp_path / "ours").go()
    stock = Trial(experiment_of(), tmp_path / "stock")
    result = Strategy.start(stock.strategy, stock.grid, stock.strategy.initial_arrays, num_rounds=12)
    assert stock.model.equal(ours.model)
    assert result.arrays is stock.strategy.initial_arrays
    assert result.evaluate_metrics_clientapp[12]["test_accuracy"] == ours.records[-1].metrics["test_accuracy"]
    assert [timeless(record) for record in stock.records] == [timeless(record) for record in ours.records]


def test_under_flowers_own_start_a_round_that_is_lost_is_left_out_and_the_sum_stays_zero(tmp_path: Path) -> None:
    def fate(message: Message) -> Fate:
        lost = message.metadata.message_type == MessageType.TRAIN and message.metadata.group_id == "4"
        return Fate.ANSWER_LOST if lost else Fate.ANSWERED

    stock = Trial(experiment_of(), tmp_path, fate)
    Strategy.start(stock.strategy, stock.grid, stock.strategy.initial_arrays, num_rounds=12)
    (third, fifth) = (record.payload_bytes_up or 0 for record in stock.records if record.round in (3, 5))
    (down, down_twice) = (record.payload_bytes_down or 0 for record in stock.records if record.round in (3, 5))
    assert 0.7 * third < fifth < 1.4 * third
    assert down_twice > 1.5 * down  # what was sent for round 4 is not forgotten
    assert [record.round for record in stock.records] == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    assert len(stock.audits) == 11
    assert max(stock.audits) < 1e-5


def timeless(record: RoundRecord) -> RoundRecord:
    """Return what does not depend on a clock, or on the order in which answers come and controls are added up."""
    by_client = {name: replace(one, memory_mb=None, seconds={}) for name, one in record.by_client.items()}
    timed = {"time": "", "seconds": 0.0, "waited_for": "", "seconds_by_phase": {}, "control_sum_norm": None}
    return replace(record, by_client=by_client, **timed)  # type: ignore[arg-type]


def test_a_ledger_keeps_what_members_have_not_settled() -> None:
    one, two, three = (torch.full((2,), float(number)) for number in (1, 2, 3))
    ledger = Ledger().after_round(1, {"a": 7, "b": 8}, one)
    ledger = ledger.after_round(2, {"a": 7}, two).after_round(3, {"a": 9}, three)
    assert {name: history.counted for name, history in ledger.members.items()} == {"a": 3, "b": 1}
    assert ledger.averages.keys() == {1, 3}
    assert ledger.average_for("b") is one
    assert ledger.average_for("stranger") is None
    assert ledger.overdue(4, 3) == []
    assert ledger.overdue(4, 2) == ["b"]
    left = ledger.without("b")
    assert (list(left.members), list(left.averages), left.off_centre) == (["a"], [3], True)
    mended = left.recentred(one)
    assert (mended.off_centre, mended.recentrings, mended.awaiting) == (False, 1, frozenset({"a"}))
    done = mended.delivered("a")
    assert (done.shift, done.awaiting) == (None, frozenset())
    assert left.without("a") == Ledger(recentrings=0)


def test_a_run_goes_on_without_a_client_that_was_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the server nobody waits for it for ever, and the sum stays zero."""
    monkeypatch.setattr("strategies.flower.membership.GATHERING_SECONDS", 0.2)

    def crash(_: Trial) -> None:
        raise CrashError

    def leave(trial: Trial) -> None:
        del trial.grid.clients[VICTIM]

    first = Trial(experiment_of(), tmp_path, after={3: leave, 5: crash}, minimum_clients=3, evict_after_rounds=3)
    with pytest.raises(CrashError):
        first.go()
    second = Trial(
        experiment_of(), tmp_path, minimum_clients=3, evict_after_rounds=3, resume_from=first.strategy.checkpoint
    )
    leave(second)
    second.go()
    assert second.counted == [3] * 7
    assert second.records[-1].control_sum_norm is not None
    assert max(second.audits) < 1e-5


def test_a_spare_client_takes_the_place_of_one_that_has_left(tmp_path: Path) -> None:
    def leave(trial: Trial) -> None:
        del trial.grid.clients[VICTIM]

    trial = Trial(experiment_of(), tmp_path, after={3: leave}, evict_after_rounds=1)
    run = Run(experiment=trial.strategy.experiment, name="trial")
    trial.grid.clients[CLIENTS + 1] = LoopbackClient(VICTIM - 1, tmp_path, run, name="spare")
    trial.go()
    assert sum("spare is left out: all 4 clients are here" in text for text in trial.said) == 1
    assert trial.counted == [CLIENTS] * 12
    assert "spare" in trial.strategy.members.roster.nodes
    assert max(trial.audits) < 1e-5


def test_who_is_missing_for_the_others_to_be_re_centred_is_said(tmp_path: Path) -> None:
    def lose_two(trial: Trial) -> None:
        del trial.grid.clients[VICTIM + 1]
        shutil.rmtree(tmp_path)
        trial.clients[VICTIM].kill()

    trial = Trial(experiment_of(), tmp_path, after={3: lose_two}, minimum_clients=2).go()
    words = "the control variates do not sum to zero until client-2 is back, or given up (--evict-after)"
    assert trial.said.count(words) == 1
    assert trial.strategy.checkpoint.ledger.off_centre
