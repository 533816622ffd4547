"""Copies of state that somebody puts back: none of them breaks the zero sum without a word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from safetensors import safe_open
from safetensors.torch import save_file

from client.memory import MemoryFile
from client.part import Part
from client.round import ForgottenError, Participant, Station
from common.codec.payload import checksum_of
from common.errors import UserError
from common.messages.messages import Order, Recentring, Run
from common.rounds.history import History
from common.rounds.ledger import Checkpoint, Ledger
from common.rounds.state import ServerState
from common.storage.slots import Slots
from server.runs.journal import FILE, Journal, JournalEntry
from tests.harness.loopback import Fate, LoopbackClient
from tests.harness.trial import CLIENTS, VICTIM, Trial, experiment_of

RECENTRE, TRAIN = "query.recentre", "train"


@pytest.fixture(autouse=True, scope="module")
def _no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strategies.flower.strategy.FIRST_PAUSE_SECONDS", 0.0)
        yield


def copy(folder: Path, client: str, to: Path) -> None:
    """Copy a client's files from one folder to another."""
    to.mkdir(exist_ok=True)
    for file in folder.glob(f"{client}.*"):
        shutil.copy(file, to)


def lose(folder: Path, node: int) -> Callable[[Trial], None]:
    """Return what takes a client's memory from it."""

    def lose_it(trial: Trial) -> None:
        for file in folder.glob(f"client-{node - 1}.memory.*"):
            file.unlink()
        trial.clients[node].kill()

    return lose_it


def lost_and_mended(trial: Trial, client: str = "client-1") -> None:
    """It is noticed, said, mended, and all are counted again; nowhere is the sum another than zero."""
    assert any(f"{client} has lost its control variate" in text for text in trial.said)
    assert not trial.strategy.checkpoint.ledger.off_centre
    assert trial.records[-1].control_sum_norm is not None
    assert max(trial.audits) < 1e-5


def test_a_memory_of_before_a_re_centring_is_a_lost_one(tmp_path: Path) -> None:
    """The last counted round is the same; before, the sum was at 0.2 from then on, and nobody said so."""
    state, backup = tmp_path / "state", tmp_path / "backup"

    def lose_another(trial: Trial) -> None:
        copy(state, "client-1", backup)
        lose(state, 4)(trial)

    def fate(message: Message) -> Fate:
        """Put the copy back when the re-centring is done, and before the round goes on."""
        if message.metadata.message_type == RECENTRE and message.metadata.dst_node_id == VICTIM:
            put_back.append(message.metadata.message_type)
        elif message.metadata.message_type == TRAIN and put_back == [RECENTRE]:
            put_back.append(TRAIN)
            copy(backup, "client-1", state)
            trial.clients[VICTIM].kill()
        return Fate.ANSWERED

    put_back: list[str] = []
    trial = Trial(experiment_of(), state, fate, after={3: lose_another})
    trial.go()
    assert put_back == [RECENTRE, TRAIN]
    lost_and_mended(trial)


@pytest.mark.parametrize("age", [1, 2, 4])
def test_a_memory_that_is_some_rounds_old_is_a_lost_one(age: int, tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup"

    def put_back(trial: Trial) -> None:
        copy(backup, "client-1", state)
        trial.clients[VICTIM].kill()

    after: dict[int, Callable[[Trial], None]] = {6 - age: lambda _: copy(state, "client-1", backup), 6: put_back}
    lost_and_mended(Trial(experiment_of(), state, after=after).go())


def test_the_newest_memory_that_is_put_back_is_as_good_as_the_original(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup"

    def move(trial: Trial) -> None:
        copy(state, "client-1", backup)
        for file in state.glob("client-1.*"):
            file.unlink()
        copy(backup, "client-1", state)
        trial.clients[VICTIM].kill()

    trial, calm = Trial(experiment_of(), state, after={6: move}).go(), Trial(experiment_of(), None).go()
    assert not any("has lost" in text for text in trial.said)
    assert trial.model.equal(calm.model)


def test_an_upload_of_a_twin_is_not_taken_for_ones_own() -> None:
    """Two processes with copies of one folder: one has trained the round, and the other's upload was counted."""
    experiment = experiment_of()
    run = Run(experiment=experiment, name="run")

    def joined(part: int) -> Participant:
        station = Station(
            name="client-1", part=Part(part, CLIENTS), data=None, device=torch.device("cpu"), state_folder=None
        )
        return Participant.join(experiment, station, run.name)

    one, twin = joined(1), joined(2)  # with other data, and so with another upload
    first, same = (
        Order(plan=experiment.plan(1), history=History(), state=client.first_state()) for client in (one, twin)
    )
    one.train(first)
    counted = History().after_round(1, checksum_of(twin.train(same).upload))
    with pytest.raises(ForgottenError, match="another course of it"):
        one.train(Order(plan=experiment.plan(2), history=counted, state=one.first_state()))


class CrashError(Exception):
    """The server's end."""


def crash(_: Trial) -> None:
    raise CrashError


@pytest.mark.parametrize("older", [1, 3])
def test_a_journal_that_is_some_rounds_old_costs_the_controls_and_not_the_sum(older: int, tmp_path: Path) -> None:
    """With one round less nothing is lost: clients send the same bytes again."""
    kept: dict[int, Checkpoint | None] = {}

    def keep(trial: Trial) -> None:
        assert trial.journal is not None
        kept[trial.journal.round] = trial.journal

    first = Trial(experiment_of(), tmp_path, after={6 - older: keep, 6: crash})
    with pytest.raises(CrashError):
        first.go()
    second = Trial(experiment_of(), tmp_path, resume_from=kept[6 - older]).go()
    assert any("has lost its control variate" in text for text in second.said) == (older > 1)
    assert second.counted[-1] == CLIENTS
    assert max(second.audits) < 1e-5


def test_the_re_centring_of_a_course_that_was_given_up_is_not_taken_for_the_one_of_now() -> None:
    """Both have the number 1: before, a client that had taken the one would have said that it had taken the other."""
    experiment = experiment_of()
    station = Station(name="client-1", part=Part(1, 4), data=None, device=torch.device("cpu"), state_folder=None)
    client = Participant.join(experiment, station, "run")
    upload = client.train(Order(plan=experiment.plan(1), history=History(), state=client.first_state())).upload
    once, average = History().after_round(1, checksum_of(upload)), torch.full((650,), 0.01)
    shift, other = torch.full((650,), 0.1), torch.full((650,), 0.2)
    client.recentre(Recentring(number=1, history=once, shift=shift, average=average))
    client.recentre(Recentring(number=1, history=once, shift=shift, average=average))  # the same again: nothing to do
    with pytest.raises(ForgottenError):
        client.recentre(Recentring(number=1, history=once, shift=other, average=average))


def test_old_orders_and_wrong_rounds_after_a_re_centring_change_nothing(tmp_path: Path) -> None:
    experiment = experiment_of()
    station = Station(name="client-1", part=Part(1, 4), data=None, device=torch.device("cpu"), state_folder=tmp_path)
    client = Participant.join(experiment, station, "run")
    zeros, average = client.first_state(), torch.full((650,), 0.01)
    shift = torch.full((650,), 0.1)
    upload = client.train(Order(plan=experiment.plan(1), history=History(), state=zeros)).upload
    once = History().after_round(1, checksum_of(upload))
    client.recentre(Recentring(number=1, history=once, shift=shift, average=average))
    now = Order(
        plan=experiment.plan(2), history=once.after_recentring(1, shift), state=ServerState(model=average), average=None
    )
    expected = client.correction(now)
    for history in (
        once,  # of before the re-centring
        once.after_recentring(2, shift),
        replace(now.history, counted=2),
        replace(now.history, counted=9),
        replace(now.history, recentred=0),
        replace(now.history, digest=1),
    ):
        for number in (1, 2, 9):
            with pytest.raises(ForgottenError):
                client.train(replace(now, plan=experiment.plan(number), history=history))
        with pytest.raises(ForgottenError):
            client.recentre(Recentring(number=2, history=history, shift=shift, average=average))
    assert client.correction(now).equal(expected)
    assert Participant.join(experiment, station, "run").correction(now).equal(expected)


@pytest.mark.parametrize("moment", ["before its journal", "after its journal", "among its clients"])
def test_a_server_that_is_killed_in_a_re_centring_goes_on_with_it(moment: str, tmp_path: Path) -> None:
    class Dying(Trial):
        def on_recentring(self, checkpoint: Checkpoint) -> None:
            if moment == "before its journal":
                raise CrashError
            super().on_recentring(checkpoint)
            if moment == "after its journal":
                raise CrashError

    told: list[int] = []

    def fate(message: Message) -> Fate:
        if message.metadata.message_type == RECENTRE:
            told.append(message.metadata.dst_node_id)
            if moment == "among its clients" and len(told) == 2:
                raise CrashError
        return Fate.ANSWERED

    first = Dying(experiment_of(), tmp_path, fate, after={4: lose(tmp_path, VICTIM)}, minimum_clients=3)
    with pytest.raises(CrashError):
        first.go()
    assert len(told) == (2 if moment == "among its clients" else 0)
    second = Trial(experiment_of(), tmp_path, resume_from=first.journal, minimum_clients=3)
    second.grid.clients = first.grid.clients  # who were there all the time
    second.go()
    assert second.strategy.checkpoint.ledger.recentrings == 1 + (moment == "before its journal" and bool(told))
    assert second.counted[-1] == CLIENTS
    assert len(second.audits) >= 6
    assert max([*first.audits, *second.audits]) < 1e-5


@pytest.mark.parametrize("fate_of_it", [Fate.KILLED, Fate.KILLED_AFTER, Fate.LOST, Fate.ANSWER_LOST])
def test_a_client_that_is_killed_in_a_re_centring_takes_it_once(fate_of_it: Fate, tmp_path: Path) -> None:
    told: list[int] = []

    def fate(message: Message) -> Fate:
        if message.metadata.message_type == RECENTRE:
            told.append(message.metadata.dst_node_id)
            return fate_of_it if len(told) < 3 else Fate.ANSWERED
        return Fate.ANSWERED

    trial = Trial(experiment_of(), tmp_path, fate, after={4: lose(tmp_path, VICTIM)}).go()
    assert len(told) == 5  # three members, of whom two were asked again
    assert trial.counted == [CLIENTS] * 12
    assert sum("has lost its control variate" in text for text in trial.said) == 1
    assert max(trial.audits) < 1e-5


def test_a_shift_waits_for_who_was_away_through_rounds_and_a_restart_of_the_server(tmp_path: Path) -> None:
    """Meanwhile the others go on, and are counted; it has to settle an old round first, and then to take the shift."""
    away, told = 4, list[int]()

    def fate(message: Message) -> Fate:
        if message.metadata.message_type == RECENTRE and message.metadata.dst_node_id == away:
            told.append(away)
            return Fate.LOST if len(told) < 4 else Fate.ANSWERED
        return Fate.ANSWERED

    first = Trial(experiment_of(), tmp_path, fate, after={3: lose(tmp_path, VICTIM), 6: crash}, minimum_clients=3)
    with pytest.raises(CrashError):
        first.go()
    assert first.counted[-2:] == [3, 3]
    assert first.journal is not None
    assert first.journal.ledger.awaiting == {"client-3"}
    journal = Journal(tmp_path, experiment_of())
    journal.write(JournalEntry(run="trial", checkpoint=first.journal, record=None))
    entry = journal.read()
    assert entry is not None
    second = Trial(experiment_of(), tmp_path, fate, resume_from=entry.checkpoint, minimum_clients=3).go()
    assert second.counted[-1] == CLIENTS
    assert sum("has lost its control variate" in text for text in [*first.said, *second.said]) == 1
    assert second.strategy.checkpoint.ledger.recentrings == 1
    assert second.records[-1].control_sum_norm is not None
    assert max([*first.audits, *second.audits]) < 1e-5


def test_an_audit_that_finds_no_zero_warns_and_has_all_re_centred(tmp_path: Path) -> None:
    """Whatever has happened to a control: here somebody has written into a running client's memory."""

    class Spoiled(Participant):
        def spoil(self) -> None:
            assert self._memory.control is not None
            self._memory.control.add_(0.1)

    joined: list[Spoiled] = []

    class Known(Spoiled):
        @classmethod
        def join(cls, *arguments: object) -> Spoiled:
            joined.append(super().join(*arguments))  # type: ignore[arg-type]
            return joined[-1]

    trial = Trial(experiment_of(), tmp_path, after={5: lambda _: joined[-1].spoil()})
    run = Run(experiment=trial.strategy.experiment, name="trial")
    trial.grid.clients[VICTIM] = LoopbackClient(1, tmp_path, run, kind=Known)
    trial.go()
    assert [record.round for record in trial.records if (record.control_sum_norm or 0.0) > 1e-3] == [6]
    (warning,) = [text for text in trial.said if "warning: round 6: the control variates sum to" in text]
    assert "re-centred before the next round" in warning
    assert max(trial.audits[6:]) < 1e-5
    assert trial.strategy.checkpoint.ledger.recentrings == 1


def test_a_method_that_shows_what_is_without_a_zero_sum_is_left_alone(tmp_path: Path) -> None:
    trial = Trial(experiment_of("sparse_proxskip_modified"), tmp_path).go()
    assert max(trial.audits) > 1e-3
    assert trial.strategy.checkpoint.ledger.recentrings == 0


def test_a_memory_of_an_earlier_version_is_as_good_as_lost(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "client-1.memory", "a client's memory")
    slots.write({"control": torch.ones(650)}, {"run": "run", "settled": "3", "recentred": "0", "plan": ""})
    assert MemoryFile(tmp_path, "client-1", "run").load(ServerState(model=torch.zeros(650))) is None


def test_a_journal_of_another_version_is_refused_with_a_sentence(tmp_path: Path) -> None:
    journal = Journal(tmp_path, experiment_of())
    checkpoint = Checkpoint(round=0, state=ServerState(model=torch.ones(2)), ledger=Ledger())
    journal.write(JournalEntry(run="r", checkpoint=checkpoint, record=None))
    path = tmp_path / FILE
    with safe_open(path, "pt") as file:
        known = json.loads(file.metadata()["journal"])
    del known["format"]
    save_file({"model": torch.ones(2)}, path, metadata={"journal": json.dumps(known)})
    with pytest.raises(UserError, match=r"written by another version.*begin a new run"):
        journal.read()
