"""Frames: what a client makes of the server's tasks, and the server of clients' answers, with the payload in them.

An input is a byte that says what is expected (as in codec.py; bit 6: a client reads, not the server), and a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from random import Random

import torch
from flwr.app import RecordDict
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError as ProtoError
from google.protobuf.message import Message

from common.codec.payload import checksum_of, encode_upload
from common.codec.scales import BFLOAT16
from common.errors import MessageError
from common.learning.task import Measured
from common.messages import messages as wire
from common.messages.content import content_of, head_of, payload_of
from common.messages.messages_pb2 import Answer, FromClient, FromServer, Held, Question, Reply, Task
from common.messages.stream import Incoming, place_to_go_on
from common.rounds.history import History
from common.rounds.records import PeakMemory
from common.rounds.state import RoundPlan, ServerState, Upload
from common.storage.spool import PIECE_BYTES
from fuzz.codec import like, mutate_payload
from fuzz.target import Change, Target, refused

AT_CLIENT = 64
LARGEST_PAYLOAD_BYTES = 2 * PIECE_BYTES  # more is refused by who reads the frame
NUMBERS = (0, 1, 2, 127, 1_000, PIECE_BYTES, 2**31 - 1, 2**31, 2**32 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, 1e100, 1e308, float("inf"), float("nan"))
SHARE_PRESENT = 0.9  # of changes that are made to a field which is there

Read = Callable[[RecordDict, ServerState], RecordDict | None]


def read(data: bytes) -> bool:
    """Read a frame; what it says, if anything, can be said again."""
    if not data:
        return False
    kind, frame = data[0], data[1:]
    try:
        content, reader = _asked(frame) if kind & AT_CLIENT else _told(frame)
        again = reader(content, like(kind))
    except MessageError as error:
        return refused(error)
    if again is not None:
        head = Question if kind & AT_CLIENT else Reply
        assert _said(head, reader(again, like(kind))) == _said(head, again), "it does not come back"
    return True


def _asked(data: bytes) -> tuple[RecordDict, Read]:
    """Return what a client is asked, and how it reads that."""
    task = _parsed(FromServer, data).task
    place_to_go_on(task.question, task.held)  # bytes that stand for an answer which is to be sent again
    content = _content(task.question, task)
    return content, ASKED[wire.asked_in(content)]


def _told(data: bytes) -> tuple[RecordDict, Read]:
    """Return what the server is told, and how it reads that: as what it has asked for."""
    answer = _parsed(FromClient, data).answer
    content = _content(answer.reply, answer)
    expected = _parsed(Reply, answer.reply).WhichOneof("told")
    return content, TOLD.get(expected, _report)


def _content(head: bytes, frame: Task | Answer) -> RecordDict:
    if frame.payload_bytes > LARGEST_PAYLOAD_BYTES:
        raise MessageError("too much")
    incoming = Incoming(frame.payload_bytes)
    incoming.add(frame.piece, frame.offset)
    if not incoming.is_complete:
        raise MessageError("pieces are missing")
    return content_of(head, incoming.payload)


def _parsed(kind: type[Message], data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except ProtoError:
        raise MessageError("no frame") from None


def _said(head: type[Message], content: RecordDict | None) -> tuple[bytes, bytes]:
    assert content is not None
    said, payload = head.FromString(head_of(content)), payload_of(content)
    return said.SerializeToString(deterministic=True), bytes(payload[:])  # a map has no order of its own


def _order(content: RecordDict, expected: ServerState) -> RecordDict:
    order = wire.unpack_order(content, expected)
    return wire.pack_order("train", wire.pack_state(order.state, order.average), order.plan, order.history)


def _recentring(content: RecordDict, expected: ServerState) -> RecordDict:
    return wire.pack_recentring(wire.unpack_recentring(content, expected))


def _notice(content: RecordDict, _: ServerState) -> RecordDict:
    return wire.pack_notice(wire.unpack_notice(content))


def _introduce(content: RecordDict, _: ServerState) -> None:
    """Read nothing: there is nothing in it."""


def _introduction(content: RecordDict, _: ServerState) -> RecordDict:
    return wire.pack_introduction(wire.unpack_introduction(content))


def _report(content: RecordDict, expected: ServerState) -> RecordDict:
    report = wire.unpack_report(content, expected)
    vectors = (report.upload.model, report.upload.control_change, report.upload.buffers)
    model, control, buffers = (None if vector is None else vector.dense() for vector in vectors)
    assert model is not None
    upload = encode_upload(Upload(model=model, control_change=control, buffers=buffers))
    told = {field.name: getattr(report, field.name) for field in fields(report)}
    return wire.pack_report(wire.Report(**{**told, "upload": upload}))


def _evaluation(content: RecordDict, _: ServerState) -> RecordDict:
    return wire.pack_evaluation(wire.unpack_evaluation(content))


def _control(content: RecordDict, expected: ServerState) -> RecordDict:
    return wire.pack_control(wire.unpack_control(content, expected))


ASKED: dict[wire.Asked, Read] = {
    "introduce": _introduce,
    "train": _order,
    "evaluate": _order,
    "audit": _order,
    "recentre": _recentring,
    "notice": _notice,
}
TOLD: dict[str | None, Read] = {
    "introduction": _introduction,
    "report": _report,
    "evaluation": _evaluation,
    "control": _control,
}


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """Change one field of a frame, at any depth."""
    kind = data[0] if data else 0
    form = FromServer if kind & AT_CLIENT else FromClient
    try:
        frame = form.FromString(data[1:])
    except ProtoError:
        return change(data)
    _change_field(frame, change, random)
    carrier = frame.task if kind & AT_CLIENT else frame.answer
    if random.random() < SHARE_PRESENT and carrier.piece:
        carrier.payload_bytes, carrier.offset = len(carrier.piece), 0
    return bytes([kind]) + bytes(frame.SerializeToString())


def _change_field(message: Message, change: Change, random: Random) -> None:
    present = [field for field, _ in message.ListFields()]
    field = random.choice(
        present if present and random.random() < SHARE_PRESENT else message.DESCRIPTOR.fields or [None]
    )
    if field is None:
        return
    if random.random() > SHARE_PRESENT:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name)[random.choice(("", "accuracy", "x" * 200))] = random.choice(FLOATS)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        _change_field(inner, change, random)
    else:
        setattr(message, field.name, _changed_value(field, getattr(message, field.name), change, random))


def _changed_value(field: FieldDescriptor, value: object, change: Change, random: Random) -> object:
    match value:
        case bytes() if field.name in ("question", "reply"):
            return _changed_head(Question() if field.name == "question" else Reply(), value, change, random)
        case bytes():
            return mutate_payload(value, change, random)
        case str():
            return change(value.encode()).decode(errors="replace")
        case bool():
            return not value
        case int():
            is_signed = field.cpp_type == field.CPPTYPE_INT32
            return random.choice(NUMBERS[: 7 if field.enum_type or is_signed else None])
        case _:
            return random.choice(FLOATS)


def _changed_head(head: Message, data: bytes, change: Change, random: Random) -> bytes:
    try:
        head.MergeFromString(data)
    except ProtoError:
        return change(data)
    _change_field(head, change, random)
    return bytes(head.SerializeToString())


def seeds() -> Iterator[bytes]:
    """Yield a frame of each kind, for models with a control and buffers and without."""
    for kind in (1, 2, 5, 9, 13):
        expected = like(kind)
        for content in _questions(expected):
            payload = bytes(payload_of(content)[:])
            head = head_of(content)
            held = Held(task=7, bytes=1, checksum=checksum_of(head, 1))
            task = Task(task=7, question=head, payload_bytes=len(payload), held=held, piece=payload)
            yield bytes([kind | AT_CLIENT]) + FromServer(task=task).SerializeToString()
        for content in _replies(expected):
            payload = bytes(payload_of(content)[:])
            answer = Answer(task=7, reply=head_of(content), payload_bytes=len(payload), piece=payload)
            yield bytes([kind]) + FromClient(answer=answer).SerializeToString()


def _questions(state: ServerState) -> Iterator[RecordDict]:
    plan = RoundPlan(round=3, local_steps=16, probability=1 / 16, learning_rate=0.5, density=0.1, precision="bfloat16")
    history = History(counted=2, recentred=1, digest=2**64 - 1)
    yield wire.pack_introduction_question()
    yield wire.pack_order("train", wire.pack_state(state), plan, history)
    yield wire.pack_order("evaluate", wire.pack_state(state), plan, History())
    yield wire.pack_order("audit", wire.pack_state(state, torch.ones_like(state.model)), plan, history)
    yield wire.pack_recentring(wire.Recentring(number=1, history=history, shift=state.model + 1, average=state.model))
    yield wire.pack_notice("the round goes on without you")


def _replies(state: ServerState) -> Iterator[RecordDict]:
    upload = encode_upload(Upload(model=state.model, control_change=state.control, buffers=state.buffers), BFLOAT16)
    peak, seconds = PeakMemory(120.0, None), {"train": 1.5, "encode": 0.1, "save": 0.2}
    yield wire.pack_introduction(wire.Introduction(client="client-0", identity="0123"))
    yield wire.pack_report(wire.Report(client="client-0", round=3, seconds=seconds, peak=peak, upload=upload))
    yield wire.pack_evaluation(wire.Evaluation(loss=0.5, held_out=Measured(40, {"accuracy": 0.9})))
    yield wire.pack_control(state.model - 1)


TARGET = Target(read=read, seeds=seeds, mutate=mutate)
