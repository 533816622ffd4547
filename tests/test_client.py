"""The client's round and its memory, without a network."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from client.memory import MemoryFile
from client.part import Part
from client.round import ForgottenError, Participant, Station
from client.shared_problem import SharedProblem
from common.codec.given import digest_of
from common.codec.payload import checksum_of, decode_upload
from common.codec.places import entries_of
from common.codec.vector import Known
from common.errors import UserError
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from common.learning.task import Problem
from common.messages.messages import Order, Recentring, Report
from common.rounds.history import History
from common.rounds.state import ServerState
from common.storage.spool import Spool
from tests.harness import small_data
from tests.harness.disk import waits_for_the_disk

SETTINGS = ["clients=3", "rounds=5", "schedule.period=2"]


def station(index: int, state: Path | None = None, of: int = 3) -> Station:
    return Station(
        name=f"client-{index}",
        part=Part(index, of),
        data=None,
        device=torch.device("cpu"),
        state_folder=state,
    )


NEW = History()


def order(
    experiment: Experiment, number: int, model: torch.Tensor, history: History, average: torch.Tensor | None = None
) -> Order:
    """An order as a client reads it: its model is the client's own."""
    state = ServerState(model=model.clone())
    return Order(plan=experiment.plan(number), history=history, state=state, average=average)


def counted(report: Report[bytes | Spool], before: History = NEW) -> History:
    """What a server notes when it counts an upload."""
    return before.after_round(report.round, checksum_of(report.upload))


def known(model: torch.Tensor) -> Known:
    """What a server knows of the uploads of a round that starts from this model."""
    return Known(given=entries_of(model))


def same(one: Report[bytes | Spool], other: Report[bytes | Spool]) -> bool:
    return one.upload == other.upload


@pytest.mark.parametrize("name", ["sparse_proxskip", "scaffold", "fediht"])
def test_a_client_started_anew_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    experiment = load_experiment("digits", [*SETTINGS, f"algorithm.name={name}"])
    resident = Participant.join(experiment, station(0), "run")
    state, history = resident.first_state(), NEW
    for number in (1, 2, 3):
        restarted = Participant.join(experiment, station(0, tmp_path), "run")
        orders = [
            Order(plan=experiment.plan(number), history=history, state=replace(state, model=state.model.clone()))
            for _ in range(2)
        ]
        expected = resident.train(orders[0])
        assert same(restarted.train(orders[1]), expected)
        history = counted(expected, history)
        uploaded = decode_upload(expected.upload, state, known=known(state.model)).model.dense()
        state = ServerState(model=0.9 * uploaded, control=state.control)


def test_asked_again_for_a_round_it_sends_the_same_without_training(tmp_path: Path) -> None:
    experiment = load_experiment("digits", SETTINGS)
    client = Participant.join(experiment, station(1, tmp_path), "run")
    first = client.train(order(experiment, 1, torch.zeros(650), NEW))
    assert same(client.train(order(experiment, 1, torch.zeros(650), NEW)), first)
    restarted = Participant.join(experiment, station(1, tmp_path), "run")
    assert same(restarted.train(order(experiment, 1, torch.zeros(650), NEW)), first)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "grid"])
def test_asked_again_with_another_model_it_sends_the_same_values_given_that(precision: str, tmp_path: Path) -> None:
    """They are counted by the bytes that were sent last, also when the client was started anew in between."""
    experiment = load_experiment("digits", [*SETTINGS, f"codec.precision={precision}"])
    client, models = Participant.join(experiment, station(1, tmp_path), "run"), (torch.ones(650), torch.randn(650))
    plan = experiment.plan(1, models[0])
    assert plan.precision == precision
    uploads = []
    for model in models:
        told = Order(plan=plan, history=NEW, state=ServerState(model=model.clone()))
        report = client.train(told)
        known_here = Known(given=entries_of(model), step=plan.step or None)
        uploads.append(decode_upload(report.upload, ServerState(model=model), known=known_here).model.dense())
        client = Participant.join(experiment, station(1, tmp_path), "run")
    assert uploads[0].equal(uploads[1])
    assert uploads[0].count_nonzero() == 65
    client.train(order(experiment, 2, torch.zeros(650), counted(report)))  # or it would say that it has forgotten


def test_uploads_that_are_not_near_the_model_are_not_given_it_but_the_model_is_kept(tmp_path: Path) -> None:
    experiment = load_experiment("digits", [*SETTINGS, "algorithm.name=locodl"])
    client = Participant.join(experiment, station(1, tmp_path), "run")
    told = Order(plan=replace(experiment.plan(1), seats=(1,)), history=NEW, state=client.first_state())
    told.state.model[65:] = 0.0
    sparse = told.state.model.clone()
    reports = [client.train(copy.deepcopy(told)) for _ in range(2)]
    assert [report.given for report in reports] == [0, 0]
    assert reports[0].upload == reports[1].upload
    assert client.kept(digest_of(entries_of(sparse))) is not None


def test_the_last_two_models_are_kept_also_by_a_client_started_anew(tmp_path: Path) -> None:
    experiment = load_experiment("digits", SETTINGS)
    client, history = Participant.join(experiment, station(1, tmp_path), "run"), NEW
    models = [number * torch.eye(650)[number] for number in (1, 2, 3)]
    for number, model in enumerate(models):
        history = counted(client.train(order(experiment, number + 1, model, history)), history)
    restarted = Participant.join(experiment, station(1, tmp_path), "run")
    for one in (client, restarted):
        found = [one.kept(digest_of(entries_of(model))) for model in models]
        assert found[0] is None
        assert [given.entries.dense().tolist() for given in found[1:] if given] == [
            model.tolist() for model in models[1:]
        ]


def test_of_two_models_with_the_same_digest_the_last_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server can bring that about; what is sent must be readable all the same, also when we are started anew."""
    monkeypatch.setattr("common.codec.given.digest_of", lambda entries: 7)
    experiment, history = load_experiment("digits", SETTINGS), NEW
    client = Participant.join(experiment, station(1, tmp_path), "run")
    for number in (1, 2, 3):
        model = number * torch.eye(650)[number]
        report = client.train(order(experiment, number, model, history))
        history = counted(report, history)
        assert report.given == 7
        kept = client.kept(7)
        assert kept is not None
        assert kept.entries.dense().equal(model)
        client = Participant.join(experiment, station(1, tmp_path), "run")


def test_a_round_says_what_its_phases_took_and_one_that_is_sent_again_nothing(tmp_path: Path) -> None:
    experiment = load_experiment("digits", SETTINGS)
    client = Participant.join(experiment, station(1, tmp_path), "run")
    first = client.train(order(experiment, 1, torch.zeros(650), NEW))
    assert list(first.seconds) == ["train", "encode", "save"]
    assert all(seconds > 0 for seconds in first.seconds.values())
    assert client.train(order(experiment, 1, torch.zeros(650), NEW)).seconds == {}


def test_who_wants_to_know_hears_of_every_local_step() -> None:
    experiment = load_experiment("digits", ["clients=3", "rounds=5", "schedule.period=4"])
    heard, deaf = (Participant.join(experiment, station(0), "run") for _ in range(2))
    steps: list[tuple[int, int, int]] = []
    heard.on_step = lambda *step: steps.append(step)
    first, second = (order(experiment, 2, torch.zeros(650), NEW) for _ in range(2))
    assert same(heard.train(first), deaf.train(second))
    assert steps == [(2, 1, 4), (2, 2, 4), (2, 3, 4), (2, 4, 4)]


class CountedExperiment:
    """Loads slowly, and counts how often it is asked to."""

    def __init__(self) -> None:
        self.loaded = 0

    def load(self, data: DataFolder, device: torch.device) -> Problem:
        self.loaded += 1
        threading.Event().wait(0.05)
        return load_experiment("digits", SETTINGS).load(data, device)


def test_clients_of_a_process_load_their_data_once() -> None:
    shared, experiment, data = SharedProblem(), CountedExperiment(), DataFolder(Path("data"), may_download=False)
    found: list[Problem] = []

    def ask(run: str = "run") -> None:
        found.append(shared.load(experiment, data, torch.device("cpu"), run))  # type: ignore[arg-type]

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == experiment.loaded == 1
    for run in ("next", "next", "run"):  # only the newest is kept
        ask(run)
    assert experiment.loaded == 3


def test_what_cannot_be_loaded_is_asked_for_again(tmp_path: Path) -> None:
    shared, experiment = SharedProblem(), load_experiment("blogfeedback", ["clients=3"])
    data = DataFolder(tmp_path, may_download=False)
    for _ in range(2):
        with pytest.raises(UserError, match="BlogFeedback"):
            shared.load(experiment, data, torch.device("cpu"), "run")
    small_data.write_blogfeedback(tmp_path)
    assert shared.load(experiment, data, torch.device("cpu"), "run").clients == 3


@pytest.mark.parametrize("name", ["digits", "blogfeedback", "femnist", "cifar10"])
def test_clients_that_share_a_problem_train_as_if_each_had_its_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three at a time, in threads, as in a process of several: nobody's data, weights or statistics get mixed up."""
    for write in (small_data.write_blogfeedback, small_data.write_femnist, small_data.write_cifar10):
        write(tmp_path)
    monkeypatch.setenv("PROXSKIP_DATA", str(tmp_path))
    own = {"cifar10": ["task.width=2", "task.train_samples=60", "task.batch_size=4"]}.get(name, [])
    experiment = load_experiment(name, ["clients=3", "rounds=5", "schedule.period=8", *own])

    def trained(client: Participant) -> list[bytes | Spool]:
        orders = [
            Order(plan=experiment.plan(number), history=NEW, state=copy.deepcopy(client.first_state()))
            for number in (2, 3)
        ]
        return [client.train(one).upload for one in orders]

    runs = [f"alone {index}" for index in range(3)], ["together"] * 3
    alone, together = (
        [Participant.join(experiment, station(index), run) for index, run in enumerate(names)] for names in runs
    )
    # A new thread has a number of helpers of its own, on which the last bits of a sum depend.
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        expected = list(pool.map(trained, alone))
    with ThreadPoolExecutor(3, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        assert list(pool.map(trained, together)) == expected


def test_an_upload_made_with_another_control_than_is_counted_on_is_not_sent_again(tmp_path: Path) -> None:
    experiment = load_experiment("digits", SETTINGS)
    model = torch.full((650,), 0.01)
    client = Participant.join(experiment, station(1, tmp_path), "run")
    once = counted(client.train(order(experiment, 1, torch.zeros(650), NEW)))
    with_control = client.train(order(experiment, 2, model, once))
    assert same(client.train(order(experiment, 2, model, once)), with_control)
    afresh = client.train(order(experiment, 2, model, NEW))  # it was given up in between
    assert not same(afresh, with_control)
    with pytest.raises(ForgottenError, match="with round 1 as its last, but client-1 remembers nothing of it"):
        client.train(order(experiment, 2, model, once))  # by a server that has forgotten that


def test_a_re_centring_is_on_the_disk_even_where_rounds_need_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load_experiment("digits", SETTINGS)
    client = Participant.join(experiment, replace(station(1, tmp_path), wait_for_disk=False), "run")
    synced = waits_for_the_disk(monkeypatch)
    once = counted(client.train(order(experiment, 1, torch.zeros(650), NEW)))
    assert not synced
    average, shift = torch.full((650,), 0.01), torch.ones(650)
    before = client.correction(order(experiment, 2, average, once))
    for _ in range(2):  # asked twice, it does it once
        client.recentre(Recentring(number=1, history=once, shift=shift, average=average))
    assert synced
    twice = once.after_recentring(1, shift)
    assert client.correction(order(experiment, 2, average, twice)).equal(before - shift)


def test_a_round_that_fails_is_done_again_as_if_it_had_not(tmp_path: Path) -> None:
    experiment = load_experiment("digits", SETTINGS)
    model = torch.full((650,), 0.01)
    disturbed, fresh = (Participant.join(experiment, station(1, tmp_path / name), "run") for name in "ab")
    once, _ = (counted(client.train(order(experiment, 1, torch.zeros(650), NEW))) for client in (disturbed, fresh))

    def fail(*_: int) -> None:
        raise MemoryError

    disturbed.on_step = fail
    with pytest.raises(MemoryError):
        disturbed.train(order(experiment, 2, model, once))
    restarted = Participant.join(experiment, station(1, tmp_path / "a"), "run")
    disturbed.on_step = fresh.on_step
    expected = fresh.train(order(experiment, 2, model, once))
    assert same(disturbed.train(order(experiment, 2, model, once)), expected)
    assert same(restarted.train(order(experiment, 2, model, once)), expected)


@pytest.mark.parametrize("name", ["proxskip", "sparse_proxskip"])
def test_weights_that_are_no_longer_finite_are_not_sent(name: str) -> None:
    experiment = load_experiment("digits", [*SETTINGS, f"algorithm.name={name}"])
    client = Participant.join(experiment, station(1), "run")
    with pytest.raises(UserError, match="no longer finite"):
        client.train(order(experiment, 1, torch.full((650,), torch.finfo(torch.float32).max), NEW))


def test_an_upload_that_was_not_counted_leaves_the_control_alone() -> None:
    experiment = load_experiment("digits", SETTINGS)
    model = torch.zeros(650)
    dropped, fresh = (Participant.join(experiment, station(2), "run") for _ in range(2))
    dropped.train(order(experiment, 1, model, NEW))
    assert same(dropped.train(order(experiment, 2, model, NEW)), fresh.train(order(experiment, 2, model, NEW)))


def test_a_client_that_missed_rounds_settles_with_the_average_of_its_own() -> None:
    experiment = load_experiment("digits", SETTINGS)
    average, later = torch.full((650,), 0.01), torch.full((650,), 0.02)
    present, absent = (Participant.join(experiment, station(0), "run") for _ in range(2))
    once, _ = (counted(client.train(order(experiment, 1, torch.zeros(650), NEW))) for client in (present, absent))
    present.train(order(experiment, 2, average, once))
    expected = present.train(order(experiment, 3, later, once))  # its round 2 was not counted
    assert same(absent.train(order(experiment, 3, later, once, average=average)), expected)


def test_a_memory_of_another_run_is_not_used(tmp_path: Path) -> None:
    experiment = load_experiment("digits", SETTINGS)
    old = Participant.join(experiment, station(0, tmp_path), "old")
    old.train(order(experiment, 1, torch.zeros(650), NEW))
    assert MemoryFile(tmp_path, "client-0", "old").load(old.like) is not None
    assert MemoryFile(tmp_path, "client-0", "new").load(old.like) is None


def test_a_torn_memory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "client-0.memory.0").write_bytes(b"\x10torn")
    with pytest.raises(UserError, match=r"client-0\.memory\.0 is not a client's memory"):
        Participant.join(load_experiment("digits", SETTINGS), station(0, tmp_path), "run")


def test_a_part_that_does_not_fit_the_experiment_is_refused() -> None:
    with pytest.raises(UserError, match=r"part 0 of 4.* has 3 clients"):
        Participant.join(load_experiment("digits", SETTINGS), station(0, of=4), "run")


@pytest.mark.parametrize("text", ["4/4", "x/3", "1", "-1/3", "1/0"])
def test_a_part_is_read_as_i_of_n(text: str) -> None:
    with pytest.raises(UserError, match="--partition"):
        Part.read(text)
