"""What goes over the wire: messages and pieces; and what is refused."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.codec.payload import encode_upload
from common.errors import MessageError
from common.experiment.files import load_experiment
from common.learning.task import Measured
from common.messages import messages as wire
from common.messages import pieces
from common.rounds.records import PeakMemory
from common.rounds.state import RoundPlan, ServerState, Upload
from common.vectors.entries import Entries

PLAN = RoundPlan(round=3, local_steps=4, probability=0.25, learning_rate=0.1, density=0.5, precision="float32")
STATE = ServerState(model=torch.tensor([0.0, -1.5, 0.0, 3.0]))
BATCH_NORM = ServerState(model=STATE.model, control=torch.tensor([1.0, 0.0, 0.0, 0.0]), buffers=torch.ones(2))


@pytest.mark.parametrize("state", [STATE, BATCH_NORM])
@pytest.mark.parametrize("average", [None, torch.tensor([0.0, 7.0, 0.0, 0.0])])
def test_an_order_comes_back(state: ServerState, average: torch.Tensor | None) -> None:
    order = wire.unpack_order(wire.pack_order(wire.pack_state(state, average), PLAN, counted=2), like=state)
    assert (order.plan, order.counted) == (PLAN, 2)
    assert order.state.model.equal(state.model)
    assert (order.average is None) == (average is None)
    if state.control is not None and order.state.control is not None:
        assert order.state.control.equal(state.control)


def test_a_report_comes_back_and_only_its_model_is_rounded() -> None:
    model = torch.tensor([0.0, 1.5, 0.0, 0.0])
    exact = torch.tensor([1.0001, 2.0])
    upload = encode_upload(Upload(model=model, buffers=exact), "bfloat16")
    seconds = {"train": 0.5, "encode": 0.01, "save": 0.0}
    report = wire.Report(client="a", round=3, seconds=seconds, peak=PeakMemory(100.0, 7.0), upload=upload)
    like = ServerState(model=STATE.model, buffers=torch.zeros(2))
    back = wire.unpack_report(wire.pack_report(report), like)
    assert (back.client, back.round, back.seconds, back.peak) == ("a", 3, seconds, PeakMemory(100.0, 7.0))
    assert back.upload.model.dense().equal(model)
    assert back.upload.buffers is not None
    assert back.upload.buffers.dense().equal(exact)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_seconds_that_are_none_are_refused(seconds: float) -> None:
    upload = encode_upload(Upload(model=STATE.model), "float32")
    report = wire.Report(client="a", round=3, seconds={"train": seconds}, peak=PeakMemory(100.0), upload=upload)
    with pytest.raises(MessageError, match="no number of seconds"):
        wire.unpack_report(wire.pack_report(report), STATE)


def test_an_upload_with_more_values_than_the_plan_allows_is_refused() -> None:
    upload = encode_upload(Upload(model=torch.tensor([0.0, 1.5, 0.0, 2.0])), "float32")
    report = wire.Report(client="a", round=3, seconds={}, peak=PeakMemory(100.0), upload=upload)
    content = wire.pack_report(report)
    model = wire.unpack_report(content, STATE, most_values=2).upload.model
    assert isinstance(model, Entries)
    assert model.places is not None
    with pytest.raises(MessageError, match="model: 2 values where at most 1"):
        wire.unpack_report(content, STATE, most_values=1)


def test_a_run_comes_back_with_the_same_experiment() -> None:
    experiment = load_experiment("digits", ["clients=3", "algorithm.density=0.2"])
    run = wire.unpack_run(wire.pack_run(wire.Run(experiment=experiment, name="n")), run_id=7)
    assert run == wire.Run(experiment=experiment, name="n")
    named = wire.unpack_run({"experiment": "digits", "settings": "clients=3 algorithm.density=0.2"}, run_id=7)
    assert named == wire.Run(experiment=experiment, name="7")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "without 'proxskip'"),
        (RecordDict({"proxskip": ConfigRecord({"round": 1})}), "plan of a round"),
        (wire.pack_order(ArrayRecord(), PLAN, 0), "without a payload"),
        (wire.pack_order(wire.pack_state(BATCH_NORM), PLAN, 0), "control"),
        (wire.pack_order(wire.pack_state(ServerState(model=torch.ones(9))), PLAN, 0), "model"),
    ],
)
def test_a_wrong_order_is_refused_with_a_reason(content: RecordDict, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        wire.unpack_order(content, like=STATE)


def test_a_large_payload_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 64)
    state = ServerState(model=torch.arange(1.0, 51.0))
    first, data = pieces.cut(wire.pack_order(wire.pack_state(state), PLAN, 0))
    assert pieces.payload_bytes(first) == 64
    assembly = pieces.Assembly(first)
    assert assembly.missing == {1, 2, 3}
    for number in (3, 1):
        assembly.add(number, pieces.piece(data, number))
    with pytest.raises(MessageError):
        assembly.add(2, b"too short")
    with pytest.raises(MessageError):
        assembly.add(3, pieces.piece(data, 3))
    assembly.add(2, pieces.piece(data, 2))
    assert wire.unpack_order(assembly.content(), like=state).state.model.equal(state.model)


def test_a_small_payload_goes_whole() -> None:
    content = wire.pack_order(wire.pack_state(STATE), PLAN, 0)
    first, data = pieces.cut(content)
    assert not pieces.Assembly(first).missing
    assert wire.unpack_order(pieces.Assembly(first).content(), like=STATE).state.model.equal(STATE.model)
    assert pieces.payload_bytes(first) == len(data)


@pytest.mark.parametrize(
    "numbers",
    [
        {"loss": 1.0},
        {"loss": 1.0, "examples": -1.0},
        {"loss": 1.0, "examples": 1e30},
        {"loss": float("nan"), "examples": 1.0},
        {"loss": 1.0, "examples": 1.0, "target": 1e200},
    ],
)
def test_an_evaluation_beyond_all_bounds_is_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(MessageError, match="an evaluation"):
        wire.unpack_evaluation(RecordDict({"metrics": MetricRecord(dict(numbers))}))


def test_an_evaluation_comes_back() -> None:
    evaluation = wire.Evaluation(loss=0.5, held_out=Measured(7, {"test_accuracy": 0.25}))
    assert wire.unpack_evaluation(wire.pack_evaluation(evaluation)) == evaluation
