"""What goes over the wire: messages and pieces; and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from common.codec.payload import checksum_of, encode_upload
from common.codec.scales import BFLOAT16, FLOAT32, Scale
from common.errors import MessageError
from common.experiment.files import load_experiment
from common.learning.task import Measured
from common.messages import messages as wire
from common.messages import messages_pb2, stream
from common.messages.content import arrays_of, content_of, head_of
from common.messages.messages_pb2 import Held
from common.messages.stream import place_to_go_on
from common.rounds.history import History
from common.rounds.records import PeakMemory
from common.rounds.state import RoundPlan, ServerState, Upload
from common.vectors.entries import Entries

PLAN = RoundPlan(round=3, local_steps=4, probability=0.25, learning_rate=0.1, density=0.5, precision="float32")
HISTORY = History(counted=2, recentred=1, digest=2**64 - 1)
STATE = ServerState(model=torch.tensor([0.0, -1.5, 0.0, 3.0]))
BATCH_NORM = ServerState(model=STATE.model, control=torch.tensor([1.0, 0.0, 0.0, 0.0]), buffers=torch.ones(2))


@pytest.mark.parametrize("state", [STATE, BATCH_NORM])
@pytest.mark.parametrize("average", [None, torch.tensor([0.0, 7.0, 0.0, 0.0])])
def test_an_order_comes_back(state: ServerState, average: torch.Tensor | None) -> None:
    order = wire.unpack_order(wire.pack_order("train", wire.pack_state(state, average), PLAN, HISTORY), like=state)
    assert (order.plan, order.history) == (PLAN, HISTORY)
    assert order.state.model.equal(state.model)
    assert (order.average is None) == (average is None)
    if state.control is not None and order.state.control is not None:
        assert order.state.control.equal(state.control)


@pytest.mark.parametrize(("scale", "statistic"), [(FLOAT32, 1.0001), (BFLOAT16, 1.0078125)])
def test_a_report_comes_back_with_what_was_rounded_before(scale: Scale, statistic: float) -> None:
    model = torch.tensor([0.0, 1.5, 0.0, 0.0])
    statistics = torch.tensor([statistic, 2.0])
    upload = encode_upload(Upload(model=model, buffers=statistics), scale)
    seconds = {"train": 0.5, "encode": 0.25, "save": 0.125}
    report = wire.Report(client="a", round=3, seconds=seconds, peak=PeakMemory(100.0, 7.0), upload=upload)
    like = ServerState(model=STATE.model, buffers=torch.zeros(2))
    back = wire.unpack_report(wire.pack_report(report), like)
    assert (back.client, back.round, back.seconds, back.peak) == ("a", 3, seconds, PeakMemory(100.0, 7.0))
    assert back.upload.model.dense().equal(model)
    assert back.upload.buffers is not None
    assert back.upload.buffers.dense().equal(statistics)


def test_an_upload_with_more_values_than_the_plan_allows_is_refused() -> None:
    upload = encode_upload(Upload(model=torch.tensor([0.0, 1.5, 0.0, 2.0])))
    report = wire.Report(client="a", round=3, seconds={}, peak=PeakMemory(100.0), upload=upload)
    content = wire.pack_report(report)
    model = wire.unpack_report(content, STATE, most_values=2).upload.model
    assert isinstance(model, Entries)
    assert model.places is not None
    with pytest.raises(MessageError, match="model: 2 values where at most 1"):
        wire.unpack_report(content, STATE, most_values=1)


def test_a_run_comes_back_with_the_same_experiment() -> None:
    experiment = load_experiment("digits", ["clients=3", "algorithm.density=0.2"])
    run = wire.unpack_run(wire.pack_run(wire.Run(experiment=experiment, name="n")), run_id=7, allowed=())
    assert run == wire.Run(experiment=experiment, name="n")
    named = wire.unpack_run({"experiment": "digits", "settings": "clients=3 algorithm.density=0.2"}, 7, allowed=())
    assert named == wire.Run(experiment=experiment, name="7")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "without a head"),
        (RecordDict({"proxskip": ConfigRecord({"round": 1})}), "without a head"),
        (content_of(b"\x12\x00"), "a plan with round = 0"),
        (wire.pack_order("train", arrays_of(b""), PLAN, History()), "whether there is an average"),
        (wire.pack_order("train", ArrayRecord(), PLAN, History()), "without a payload"),
        (wire.pack_order("train", wire.pack_state(BATCH_NORM), PLAN, History()), "model"),
        (wire.pack_order("train", wire.pack_state(ServerState(model=torch.ones(9))), PLAN, History()), "model"),
    ],
)
def test_a_wrong_order_is_refused_with_a_reason(content: RecordDict, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        wire.unpack_order(content, like=STATE)


def test_a_large_payload_goes_in_pieces_and_on_from_where_it_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PIECE_BYTES", 64)
    data = bytes(range(200))
    incoming = stream.Incoming(len(data))
    for place in (0, 64):
        incoming.add(data[place : place + 64])
    held = incoming.held(7)
    assert (held.task, held.bytes) == (7, 128)
    assert stream.place_to_go_on(data, held) == 128
    assert stream.place_to_go_on(b"\1" + data[1:], held) == 0, "the bytes before are others"
    assert stream.place_to_go_on(data[:100], held) == 0, "there are not so many"
    incoming.add(data[128:])
    assert incoming.is_complete
    assert incoming.payload[:] == data
    with pytest.raises(MessageError, match="beyond the 200 bytes"):
        incoming.add(b"x")


def test_an_order_takes_some_sixty_bytes_on_the_wire() -> None:
    content = wire.pack_order("train", wire.pack_state(STATE), PLAN, HISTORY)
    assert len(head_of(content)) <= 60


def test_bytes_that_are_no_message_are_refused() -> None:
    for content, unpack in (
        (content_of(b"\xff\xff"), wire.unpack_introduction),
        (content_of(b""), wire.unpack_introduction),
        (wire.pack_done(), wire.unpack_introduction),
        (RecordDict(), wire.unpack_introduction),
        (content_of(b""), lambda one: wire.unpack_order(one, STATE)),
        (wire.pack_notice("hear"), lambda one: wire.unpack_order(one, STATE)),
    ):
        with pytest.raises(MessageError):
            unpack(content)


def test_every_question_has_a_type_of_flowers() -> None:
    asked = {field.name for field in messages_pb2.Question.DESCRIPTOR.fields}
    assert asked == wire.MESSAGE_TYPES.keys()
    assert wire.asked_in(wire.pack_notice("hear")) == "notice"


@pytest.mark.parametrize(
    "evaluation",
    [
        messages_pb2.Evaluation(loss=1.0, examples=1 << 60),
        messages_pb2.Evaluation(loss=float("nan"), examples=1),
        messages_pb2.Evaluation(loss=1.0, examples=1, means={"target": 1e200}),
    ],
)
def test_an_evaluation_beyond_all_bounds_is_refused(evaluation: messages_pb2.Evaluation) -> None:
    with pytest.raises(MessageError, match="an evaluation"):
        wire.unpack_evaluation(content_of(messages_pb2.Reply(evaluation=evaluation).SerializeToString()))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
def test_a_report_beyond_all_bounds_is_refused(number: float) -> None:
    report = messages_pb2.Report(client="a", round=1, train_seconds=number)
    with pytest.raises(MessageError, match="beyond all bounds"):
        wire.unpack_report(content_of(messages_pb2.Reply(report=report).SerializeToString()), STATE)


def test_an_evaluation_comes_back() -> None:
    evaluation = wire.Evaluation(loss=0.5, held_out=Measured(7, {"test_accuracy": 0.25}))
    assert wire.unpack_evaluation(wire.pack_evaluation(evaluation)) == evaluation


def test_the_generated_code_is_that_of_the_specification(tmp_path: Path) -> None:
    """As `make check` has it: who changes messages.proto runs `make messages`."""
    source = Path(messages_pb2.__file__).with_name("messages.proto")
    root = source.parents[2]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--python_out={tmp_path}", str(source)]
    subprocess.run(command, check=True)
    assert (tmp_path / "common/messages/messages_pb2.py").read_text() == Path(messages_pb2.__file__).read_text()


def test_uploads_of_one_length_are_told_apart() -> None:
    uploads = [
        encode_upload(Upload(model=torch.full((8,), number), buffers=torch.ones(2))) for number in (1.0, 2.0, 3.0)
    ]
    assert len({len(one) for one in uploads}) == 1
    assert len({checksum_of(one) for one in uploads}) == 3
    whole = [Held(bytes=len(one), checksum=checksum_of(one)) for one in uploads]
    assert [place_to_go_on(uploads[0], held) for held in whole] == [len(uploads[0]), 0, 0]
