"""A client whose numbers are beyond all measure: it is put out, and the others go on as if it had never been there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client.part import Part
from client.round import ForgottenError, Participant, Station
from common.codec.payload import checksum_of
from common.errors import UserError
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.messages import Order, Recentring, Report
from common.rounds.history import History
from common.rounds.outliers import MOST_TIMES_THE_MEDIAN, Change, median_of, outliers
from common.rounds.state import ServerState
from common.say import Event
from common.storage.spool import Spool
from strategies.flower.membership import MOST_TIMES_FORGOTTEN
from strategies.flower.strategy import FederationError
from strategies.flower.tally import Tally
from strategies.flower.terms import Terms
from tests.harness.witness import Witness
from tests.hostile.liars import federation, liar, scaled, showing

CLIENTS, LIAR = 4, 1


def experiment_of(*settings: str, clients: int = CLIENTS, rounds: int = 6) -> Experiment:
    return load_experiment("digits", [f"clients={clients}", f"rounds={rounds}", "schedule.period=3", *settings])


def from_round(number: int, factor: float) -> type[Participant]:
    lie = scaled(factor)
    return liar(lambda upload, order: upload if order.plan.round < number else lie(upload, order))


def put_out(run: Witness) -> list[str]:
    return [text.client for text in run.said if isinstance(text, Event) and text.kind == "put out"]


def test_one_upload_of_3e38_does_not_reach_the_model(tmp_path: Path) -> None:
    """By default, and from the first round on: the others' saved uploads give the mean that they alone would give."""
    run = federation(experiment_of(), tmp_path, [LIAR], liar(scaled(1e40)))
    assert put_out(run) == ["client-1"]
    assert run.counted == [CLIENTS - 1] * 6
    assert float(run.model.norm()) < 100
    for record in run.records:
        ((why, missing),) = record.clients_missing.items()
        assert missing.names == ["client-1"]
        assert "change of the model of norm" in why


def test_the_others_are_re_centred_and_their_sum_is_zero(tmp_path: Path) -> None:
    terms = Terms(audit_every_rounds=1)
    run = federation(experiment_of(rounds=8), tmp_path, [LIAR], from_round(4, 1e30), terms)
    assert run.counted == [CLIENTS] * 3 + [CLIENTS - 1] * 5
    assert put_out(run) == ["client-1"]
    assert sum("3 members are re-centred" in text for text in run.said) == 1
    assert len(run.audits) == 8
    assert max(run.audits) < 1e-5
    assert run.model.isfinite().all()


@pytest.mark.parametrize("what", ["control_change", "model"])
def test_scaffolds_control_is_watched_like_its_model(what: str, tmp_path: Path) -> None:
    lie = liar(lambda upload, order: replace(upload, **{what: torch.full_like(upload.model, 1e38)}))
    run = federation(experiment_of("algorithm.name=scaffold"), tmp_path, [LIAR], lie)
    assert put_out(run) == ["client-1"]
    assert run.counted == [CLIENTS - 1] * 6
    assert run.strategy.state.control is not None
    assert float(run.strategy.state.control.norm()) < 100


def test_a_control_of_1e30_reaches_nobody(tmp_path: Path) -> None:
    """It is shown at an audit; nobody's control is re-centred with it."""
    run = federation(
        experiment_of(rounds=8), tmp_path, [LIAR], showing(lambda control: control + 1e30), Terms(audit_every_rounds=3)
    )
    assert put_out(run) == ["client-1"]
    assert run.counted == [CLIENTS] * 3 + [CLIENTS - 1] * 5
    assert [record.round for record in run.records if record.control_sum_norm is not None] == [6]
    assert max(run.audits) < 1e-5


def test_most_clients_must_be_left(tmp_path: Path) -> None:
    """Of two, nobody can say who of them lies: the run ends, with the reason."""
    with pytest.raises(FederationError, match=r"round 1 cannot be done: client-1: sent a change of the model"):
        federation(experiment_of(clients=2), tmp_path / "one", [LIAR], liar(scaled(1e30)))
    with pytest.raises(FederationError, match=r"round 1 cannot be done: client-[01]: .*; client-[01]: "):
        federation(experiment_of(), tmp_path, [0, 1], liar(scaled(float("nan"))))


def test_a_client_that_is_refused_each_time_ends_no_run(tmp_path: Path) -> None:
    """By default all clients are needed, but for those whose reply cannot be taken."""
    run = federation(experiment_of(), tmp_path, [LIAR], liar(scaled(float("nan"))), Terms(audit_every_rounds=6))
    assert run.counted == [CLIENTS - 1] * 6
    assert not any("asking again" in text for text in run.said)
    assert all("not finite" in why for record in run.records for why in record.clients_missing)
    assert max(run.audits) < 1e-5


def test_who_is_put_out_may_not_come_again_also_when_the_server_is_started_again(tmp_path: Path) -> None:
    heard: list[str] = []

    class Notified(liar(scaled(1e30))):  # type: ignore[misc] # a class that a function has made
        def train(self, order: Order) -> object:
            heard.append(f"round {order.plan.round}")
            return super().train(order)

    begun = federation(experiment_of(rounds=3), tmp_path, [LIAR], Notified)
    resumed = federation(experiment_of(rounds=6), tmp_path, [LIAR], Notified, resume_from=begun.journal)
    assert heard == ["round 1"]
    assert resumed.counted == [CLIENTS - 1] * 3
    assert [record.missing_names for record in resumed.records] == [["client-1"]] * 3


def test_a_client_that_forgets_all_the_time_is_put_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all others have to show their control variates, and be re-centred."""
    monkeypatch.setattr("strategies.flower.strategy.FIRST_PAUSE_SECONDS", 0.0)

    class Forgetful(Participant):
        def train(self, order: Order) -> Report[bytes | Spool]:
            if order.history.counted:
                raise ForgottenError("lost")
            return super().train(order)

    run = federation(experiment_of(rounds=20), tmp_path, [LIAR], Forgetful, Terms(audit_every_rounds=20))
    assert sum("client-1 has lost its control variate:" in text for text in run.said) == MOST_TIMES_FORGOTTEN - 1
    assert put_out(run) == ["client-1"]
    assert run.counted[-1] == CLIENTS - 1
    assert max(run.audits) < 1e-5


def test_honest_runs_have_the_bits_that_they_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = federation(experiment_of(), tmp_path / "a", [], Participant)
    monkeypatch.setattr("strategies.flower.tally.Tally.beyond_measure", lambda *_: {})
    unwatched = federation(experiment_of(), tmp_path / "b", [], Participant)
    assert honest.model.numpy().tobytes() == unwatched.model.numpy().tobytes()


def test_a_shift_that_would_make_a_control_infinite_is_not_taken(tmp_path: Path) -> None:
    """A server may lie as well: what a client remembers stays finite."""
    experiment = experiment_of()
    client = joined(experiment, tmp_path)
    report = client.train(Order(plan=experiment.plan(1), history=History(), state=client.first_state()))
    largest = torch.full_like(client.first_state().model, torch.finfo(torch.float32).max)
    once = History().after_round(1, checksum_of(report.upload))
    client.recentre(Recentring(number=1, history=once, shift=largest, average=client.first_state().model))
    twice = once.after_recentring(1, largest)
    with pytest.raises(UserError, match="no longer finite"):
        client.recentre(Recentring(number=2, history=twice, shift=largest, average=None))
    control = joined(experiment, tmp_path).correction(
        Order(plan=experiment.plan(2), history=twice, state=client.first_state())
    )
    assert control.isfinite().all()


def joined(experiment: Experiment, state: Path) -> Participant:
    part = Part(0, experiment.clients)
    here = Station(name="client-0", part=part, data=None, device=torch.device("cpu"), state_folder=state)
    return Participant.join(experiment, here, "run")


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([1.0, 1.0, 1.0], []),
        ([1.0, 1.0, 1.1 * MOST_TIMES_THE_MEDIAN], [2]),
        ([1.0, 1.0, 0.9 * MOST_TIMES_THE_MEDIAN], []),
        ([0.0, 0.0, 1.0], []),  # who alone has moved is no liar
        ([1.0, math.inf], [1]),
        ([math.inf, 1.0, 1.0, math.inf], [0, 3]),
        ([], []),
    ],
)
def test_who_is_an_outlier(norms: list[float], expected: list[int]) -> None:
    assert list(outliers({str(place): norm for place, norm in enumerate(norms)})) == [str(one) for one in expected]


def test_what_is_no_larger_than_the_model_is_harmless() -> None:
    norms = {"a": 1e-9, "b": 1e-9, "c": 1.0}
    assert list(outliers(norms)) == ["c"]
    assert not outliers(norms, harmless=1.0)


def test_a_change_is_measured_where_the_upload_has_values() -> None:
    change = Change(ServerState(model=torch.tensor([1.0, 2.0, 5.0]), buffers=torch.tensor([1.0])))
    change.see("model", np.array([0, 1], np.int32), np.array([4.0, 6.0], np.float32))
    change.see("control_change", slice(0, 3), np.array([0.0, 3.0, 4.0], np.float32))
    change.see("buffers", slice(0, 1), np.array([3e38], np.float32))
    assert change.norms() == {"model": 5.0, "control_change": 5.0, "buffers": math.inf}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["blogfeedback-90", "femnist-90"])
@pytest.mark.parametrize("algorithm", ["sparse_proxskip", "fedavg", "scaffold"])
@pytest.mark.usefixtures("real_data")
def test_honest_clients_of_the_papers_runs_are_far_from_being_put_out(name: str, algorithm: str) -> None:
    """There is an order of magnitude of room for data that is more uneven still."""
    experiment = load_experiment(name, ["rounds=2", f"algorithm.name={algorithm}"])
    ratios: list[float] = []

    class Watched(Tally):
        def beyond_measure(self, sent: ServerState) -> dict[str, str]:
            ratios.extend(max(norms.values()) / median_of(norms) for norms in self.changes.values())
            return super().beyond_measure(sent)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strategies.flower.strategy.Tally", Watched)
        run = federation(experiment, None, [], Participant)
    assert run.counted == [experiment.clients] * 2
    assert 1 < max(ratios) < MOST_TIMES_THE_MEDIAN / 10
