"""The client's round and its memory, without a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from client.memory import MemoryFile
from client.part import Part
from client.round import ForgottenError, Participant, Station
from common.codec.payload import decode_upload
from common.errors import UserError
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.messages import Order, Recentring, Report
from common.rounds.state import ServerState
from common.storage.spool import Spool

SETTINGS = ["clients=3", "rounds=5", "schedule.period=2"]


def station(index: int, state: Path | None = None, of: int = 3) -> Station:
    return Station(
        name=f"client-{index}",
        part=Part(index, of),
        data=None,
        device=torch.device("cpu"),
        state_folder=state,
    )


def order(experiment: Experiment, number: int, model: torch.Tensor, counted: int, **more: torch.Tensor) -> Order:
    return Order(plan=experiment.plan(number), counted=counted, state=ServerState(model=model), **more)


def same(one: Report[bytes | Spool], other: Report[bytes | Spool]) -> bool:
    return one.upload == other.upload


@pytest.mark.parametrize("name", ["sparse_proxskip", "scaffold", "fediht"])
def test_a_client_started_anew_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    experiment = load_experiment("digits", [*SETTINGS, f"algorithm.name={name}"])
    resident = Participant.join(experiment, station(0), "run")
    state = resident.like
    for number in (1, 2, 3):
        restarted = Participant.join(experiment, station(0, tmp_path), "run")
        again = Order(plan=experiment.plan(number), counted=number - 1, state=state)
        expected = resident.train(again)
        assert same(restarted.train(again), expected)
        uploaded = decode_upload(expected.upload, state).model.dense()
        state = ServerState(model=0.9 * uploaded, control=state.control)


def test_asked_again_for_a_round_it_sends_the_same_without_training(tmp_path: Path) -> None:
    experiment = load_experiment("digits", SETTINGS)
    client = Participant.join(experiment, station(1, tmp_path), "run")
    first = client.train(order(experiment, 1, torch.zeros(650), 0))
    assert same(client.train(order(experiment, 1, torch.ones(650), 0)), first)
    restarted = Participant.join(experiment, station(1, tmp_path), "run")
    assert same(restarted.train(order(experiment, 1, torch.ones(650), 0)), first)


def test_an_upload_made_with_another_control_than_is_counted_on_is_not_sent_again(tmp_path: Path) -> None:
    experiment = load_experiment("digits", SETTINGS)
    model = torch.full((650,), 0.01)
    client = Participant.join(experiment, station(1, tmp_path), "run")
    client.train(order(experiment, 1, torch.zeros(650), 0))
    with_control = client.train(order(experiment, 2, model, 1))
    assert same(client.train(order(experiment, 2, model, 1)), with_control)
    afresh = client.train(order(experiment, 2, model, 0))  # it was given up in between
    assert not same(afresh, with_control)
    with pytest.raises(ForgottenError, match="was counted in round 1"):
        client.train(order(experiment, 2, model, 1))  # by a server that has forgotten that


def test_a_re_centring_is_on_the_disk_even_where_rounds_need_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load_experiment("digits", SETTINGS)
    client = Participant.join(experiment, replace(station(1, tmp_path), wait_for_disk=False), "run")
    synced: list[Path] = []
    monkeypatch.setattr("common.storage.durable._sync", synced.append)
    client.train(order(experiment, 1, torch.zeros(650), 0))
    assert not synced
    average, shift = torch.full((650,), 0.01), torch.ones(650)
    before = client.correction(order(experiment, 2, average, 1))
    for _ in range(2):  # asked twice, it does it once
        client.recentre(Recentring(number=1, counted=1, shift=shift, average=average))
    assert synced
    assert client.correction(order(experiment, 2, average, 1)).equal(before - shift)


def test_an_upload_that_was_not_counted_leaves_the_control_alone() -> None:
    experiment = load_experiment("digits", SETTINGS)
    model = torch.zeros(650)
    dropped, fresh = (Participant.join(experiment, station(2), "run") for _ in range(2))
    dropped.train(order(experiment, 1, model, 0))
    assert same(dropped.train(order(experiment, 2, model, 0)), fresh.train(order(experiment, 2, model, 0)))


def test_a_client_that_missed_rounds_settles_with_the_average_of_its_own() -> None:
    experiment = load_experiment("digits", SETTINGS)
    average, later = torch.full((650,), 0.01), torch.full((650,), 0.02)
    present, absent = (Participant.join(experiment, station(0), "run") for _ in range(2))
    for client in (present, absent):
        client.train(order(experiment, 1, torch.zeros(650), 0))
    present.train(order(experiment, 2, average, 1))
    expected = present.train(order(experiment, 3, later, 1))  # its round 2 was not counted
    assert same(absent.train(order(experiment, 3, later, 1, average=average)), expected)


def test_a_memory_of_another_run_is_not_used(tmp_path: Path) -> None:
    experiment = load_experiment("digits", SETTINGS)
    old = Participant.join(experiment, station(0, tmp_path), "old")
    old.train(order(experiment, 1, torch.zeros(650), 0))
    assert MemoryFile(tmp_path, "client-0", "old").load(old.like) is not None
    assert MemoryFile(tmp_path, "client-0", "new").load(old.like) is None


def test_a_torn_memory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "client-0.safetensors").write_bytes(b"\x10torn")
    with pytest.raises(UserError, match=r"client-0\.safetensors is not a client's memory"):
        Participant.join(load_experiment("digits", SETTINGS), station(0, tmp_path), "run")


def test_a_part_that_does_not_fit_the_experiment_is_refused() -> None:
    with pytest.raises(UserError, match=r"part 0 of 4.* has 3 clients"):
        Participant.join(load_experiment("digits", SETTINGS), station(0, of=4), "run")


@pytest.mark.parametrize("text", ["4/4", "x/3", "1", "-1/3", "1/0"])
def test_a_part_is_read_as_i_of_n(text: str) -> None:
    with pytest.raises(UserError, match="--partition"):
        Part.read(text)
