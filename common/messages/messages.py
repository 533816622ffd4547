"""Our types <-> the messages of messages.proto, in Flower's records (content.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, cast

from flwr.app import ArrayRecord, Message, RecordDict
from google.protobuf.message import DecodeError as ProtoError
from torch import Tensor

from common.codec import payload
from common.codec.given import Given
from common.codec.vector import Known
from common.errors import DecodeError, MessageError, NotKeptError
from common.experiment.experiment import Experiment
from common.experiment.files import told_experiment
from common.learning.task import Measured
from common.messages import messages_pb2 as proto
from common.messages.content import arrays_of, content_of, head_of, payload_of
from common.ranges import LARGEST, SMALLEST, Range
from common.rounds.history import History
from common.rounds.records import PeakMemory
from common.rounds.rounding import LARGEST_EXPONENT, SMALLEST_EXPONENT
from common.rounds.schedule import MOST_LOCAL_STEPS
from common.rounds.state import MOST_CLIENTS, Precision, ReceivedUpload, RoundPlan, ServerState, Upload
from common.say import LONGEST_NAME
from common.storage.spool import Spool

_EXPERIMENT = "experiment"  # in the run's configuration: its YAML text, or the name of a shipped one
_SETTINGS = "settings"  # key=value, separated by spaces
_RUN = "run"  # what a client's memory belongs to

# What a client believes of a plan.
PLAN_RANGES = {
    "round": Range(at_least=1),
    "local_steps": Range(at_least=1, at_most=MOST_LOCAL_STEPS),
    "probability": Range(above=0, at_most=1),
    "learning_rate": Range(above=SMALLEST, below=LARGEST),
    "density": Range(above=0, at_most=1),
    "step_exponent": Range(at_least=SMALLEST_EXPONENT, at_most=LARGEST_EXPONENT),
    "cohort": Range(at_least=1, at_most=MOST_CLIENTS),
}
LARGEST_MEAN = 1e100
MOST_EXAMPLES = 2**53  # what a float counts exactly

Asked = Literal["introduce", "train", "evaluate", "audit", "recentre", "notice"]
# How Flower calls what a message asks for; its apps are routed by that.
MESSAGE_TYPES: dict[Asked, str] = {
    "introduce": "query",
    "train": "train",
    "evaluate": "evaluate",
    "audit": "query.audit",
    "recentre": "query.recentre",
    "notice": "query.notice",
}

Kept = Callable[[int], Given | None]  # returns the model of this digest, if it is kept
_Upload = TypeVar("_Upload", bytes | Spool, ReceivedUpload)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What goes down to a client for one round."""

    plan: RoundPlan
    history: History  # of the control that the server counts on; of a client that is new to it, nothing
    state: ServerState
    average: Tensor | None = None  # of the counted round, where it is not the state's model


@dataclass(frozen=True, kw_only=True)
class Recentring:
    """What a member has to take from its control variate, once, as another has gone with its own."""

    number: int
    history: History  # of the control from which it is to be taken
    shift: Tensor
    average: Tensor | None  # of the counted round


@dataclass(frozen=True, kw_only=True)
class Report(Generic[_Upload]):
    """What comes up from a client after one round: its upload in bytes, or as the server reads it."""

    client: str
    round: int
    seconds: Mapping[str, float]  # that the round took on the client, by phase; none where it was only sent again
    peak: PeakMemory
    upload: _Upload
    given: int = 0  # the digest of the model that the upload is given; 0: none


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a client says of a model: its loss f_i, and what it measures on held-out data where it has some."""

    loss: float
    held_out: Measured


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """Who a client is: by its name, and by what tells it from another that was given the same name."""

    client: str
    identity: str  # stays with the client's state folder; without one, with its process
    frozen: str = ""  # digest of the part of its model that does not travel; empty where all of it does


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a client is told of a run when it first hears of it."""

    experiment: Experiment
    name: str  # what a client's memory belongs to: the same when the server was restarted


def pack_run(run: Run) -> dict[str, bool | float | int | str]:
    """Write the configuration of a Flower run: the experiment goes as text, so that both sides read the same."""
    return {_EXPERIMENT: run.experiment.to_yaml(), _SETTINGS: "", _RUN: run.name}


def unpack_run(config: Mapping[str, object], run_id: int, allowed: Collection[str] | None) -> Run:
    """Read it: what `pack_run` wrote, or what a user of `flwr run` gave with --run-config.

    A client says which classes outside this repo it is allowed to run, each as module:Class; a server runs any (None).
    """
    told, settings = str(config.get(_EXPERIMENT, "")), str(config.get(_SETTINGS, ""))
    name = str(config.get(_RUN) or run_id)
    if not told:
        raise MessageError("a run without an experiment in its configuration")
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise MessageError(f"a run without a name of at most {LONGEST_NAME} printable characters")
    return Run(experiment=told_experiment(told, settings.split(), allowed), name=name)


def message_to(node: int, asked: Asked, content: RecordDict, group: str = "") -> Message:
    """Return a message to a node."""
    return Message(content, node, MESSAGE_TYPES[asked], group_id=group)


def asked_in(content: RecordDict) -> Asked:
    """Return what a message asks for."""
    return _asked(_question(content))


def pack_state(state: ServerState, average: Tensor | None = None, given: Given | None = None) -> ArrayRecord:
    """Write what the server sends down: losslessly, as an average must not be changed on the way."""
    return arrays_of(payload.encode_state(state, average, given.entries if given else None))


def unpack_state(
    data: bytes | Spool, like: ServerState, given: Given | None = None
) -> tuple[ServerState, Tensor | None]:
    """Read what `pack_state` wrote; `like` gives the sizes."""
    try:
        return payload.decode_state(data, like, Known(given=given.entries if given else None))
    except DecodeError as error:
        raise MessageError(str(error)) from None


def pack_order(
    asked: Literal["train", "evaluate", "audit"],
    arrays: ArrayRecord,
    plan: RoundPlan,
    history: History,
    given: Given | None = None,
) -> RecordDict:
    """Write a round's order around the packed state, which all clients share; say what that is given."""
    order = proto.Order(
        plan=proto.Plan(
            round=plan.round,
            local_steps=plan.local_steps,
            probability=plan.probability,
            learning_rate=plan.learning_rate,
            density=plan.density,
            precision=plan.precision.upper(),
            step_exponent=math.frexp(plan.step)[1] - 1 if plan.step else 0,
            seed=plan.seed,
            cohort=plan.cohort,
            seat=plan.seats[0],
        ),
        history=_packed_history(history),
        given=given.digest if given else 0,
    )
    return content_of(proto.Question(**{asked: order}).SerializeToString(), arrays)


def unpack_order(content: RecordDict, like: ServerState, kept: Kept = lambda _: None) -> Order:
    """Read what `pack_order` wrote; its model may be given one that is kept."""
    question = _question(content)
    asked = _asked(question)
    if asked not in ("train", "evaluate", "audit"):
        raise MessageError(f"an order for a round was expected, not {asked}")
    order = getattr(question, asked)
    plan = order.plan
    if plan.precision not in proto.Plan.Precision.values():
        raise MessageError(f"a plan with an unknown precision, {plan.precision}")
    for name, allowed in PLAN_RANGES.items():
        if (number := getattr(plan, name)) not in allowed:
            raise MessageError(f"a plan with {name} = {number:g}, which must be {allowed}")
    if plan.seat >= plan.cohort:
        raise MessageError(f"a plan with seat {plan.seat} of {plan.cohort}")
    precision = cast(Precision, proto.Plan.Precision.Name(plan.precision).lower())
    given = kept(order.given) if order.given else None
    if order.given and given is None:
        raise NotKeptError("a model that is given another, which this client does not have")
    state, average = unpack_state(payload_of(content), like, given)
    return Order(
        plan=RoundPlan(
            round=plan.round,
            local_steps=plan.local_steps,
            probability=plan.probability,
            learning_rate=plan.learning_rate,
            density=plan.density,
            precision=precision,
            step=2.0**plan.step_exponent if precision == "grid" else 0.0,
            seed=plan.seed,
            cohort=plan.cohort,
            seats=(plan.seat,),
        ),
        history=_history(order.history),
        state=state,
        average=average,
    )


def pack_report(report: Report[bytes | Spool]) -> RecordDict:
    """Write what a client uploads."""
    told = proto.Report(
        client=report.client,
        round=report.round,
        memory_mb=report.peak.memory_mb,
        vram_mb=report.peak.vram_mb,
        given=report.given,
        **{f"{phase}_seconds": seconds for phase, seconds in report.seconds.items()},
    )
    return content_of(proto.Reply(report=told).SerializeToString(), report.upload)


def unpack_report(
    content: RecordDict,
    like: ServerState,
    most_values: int | None = None,
    given: Given | None = None,
    step: float | None = None,
) -> Report[ReceivedUpload]:
    """Read what `pack_report` wrote; the upload may be given the round's model, and on a grid of its step."""
    told = _reply(content, "report").report
    seconds = {phase: getattr(told, f"{phase}_seconds") for phase in ("train", "encode", "save")}
    numbers = [*seconds.values(), told.memory_mb, told.vram_mb]
    if not all(math.isfinite(one) and one >= 0 for one in numbers):
        raise MessageError("a report with seconds or memory beyond all bounds")
    if told.given and (given is None or told.given != given.digest):
        raise NotKeptError("an upload that is given another model than was sent")
    known = Known(given=given.entries if given and told.given else None, step=step)
    try:
        upload = payload.decode_upload(payload_of(content), like, most_values, known)
    except DecodeError as error:
        raise MessageError(str(error)) from None
    peak = PeakMemory(
        told.memory_mb if told.HasField("memory_mb") else None, told.vram_mb if told.HasField("vram_mb") else None
    )
    spent = {phase: value for phase, value in seconds.items() if value}
    return Report(
        client=told.client,
        round=told.round,
        seconds=spent,
        peak=peak,
        upload=upload,
        given=told.given,
    )


def pack_introduction_question() -> RecordDict:
    """Write the first question, who a client is."""
    return content_of(proto.Question(introduce=proto.Introduce()).SerializeToString())


def pack_introduction(introduction: Introduction) -> RecordDict:
    """Write a client's answer to it."""
    told = proto.Introduction(name=introduction.client, identity=introduction.identity, frozen=introduction.frozen)
    return content_of(proto.Reply(introduction=told).SerializeToString())


def unpack_introduction(content: RecordDict) -> Introduction:
    """Read who a client is."""
    told = _reply(content, "introduction").introduction
    if not (0 < len(told.name) <= LONGEST_NAME and told.name.isprintable()):
        raise MessageError(f"a client without a name of at most {LONGEST_NAME} printable characters")
    if not 0 < len(told.identity) <= LONGEST_NAME:
        raise MessageError("a client without an identity")
    if len(told.frozen) > LONGEST_NAME:
        raise MessageError(f"a digest of more than {LONGEST_NAME} characters")
    return Introduction(client=told.name, identity=told.identity, frozen=told.frozen)


def pack_notice(text: str) -> RecordDict:
    """Write what the operator of a client should know."""
    return content_of(proto.Question(notice=proto.Notice(text=text)).SerializeToString())


def unpack_notice(content: RecordDict) -> str:
    """Read it."""
    return str(_question(content).notice.text)


def pack_done() -> RecordDict:
    """Write that what was asked for is done."""
    return content_of(proto.Reply(done=proto.Done()).SerializeToString())


def pack_control(control: Tensor) -> RecordDict:
    """Write a client's control variate, which it shows to nobody but an auditor."""
    head = proto.Reply(control=proto.Control()).SerializeToString()
    return content_of(head, arrays_of(payload.encode_upload(Upload(model=control))))


def unpack_control(content: RecordDict, like: ServerState) -> Tensor:
    """Read the control variate."""
    _reply(content, "control")
    try:
        return payload.decode_upload(payload_of(content), ServerState(model=like.model)).model.dense()
    except DecodeError as error:
        raise MessageError(str(error)) from None


def pack_recentring(recentring: Recentring) -> RecordDict:
    """Write what is to be taken from a control variate."""
    told = proto.Recentring(number=recentring.number, history=_packed_history(recentring.history))
    question = proto.Question(recentre=told)
    return content_of(question.SerializeToString(), pack_state(ServerState(model=recentring.shift), recentring.average))


def unpack_recentring(content: RecordDict, like: ServerState) -> Recentring:
    """Read what `pack_recentring` wrote."""
    recentre = _question(content).recentre
    if not recentre.number:
        raise MessageError("a re-centring without its number")
    vectors, average = unpack_state(payload_of(content), ServerState(model=like.model))
    history = _history(recentre.history)
    return Recentring(number=recentre.number, history=history, shift=vectors.model, average=average)


def pack_evaluation(evaluation: Evaluation) -> RecordDict:
    """Write what a client says of the model that it was sent."""
    held_out = evaluation.held_out
    told = proto.Evaluation(loss=evaluation.loss, examples=held_out.examples, means=held_out.means)
    return content_of(proto.Reply(evaluation=told).SerializeToString())


def unpack_evaluation(content: RecordDict) -> Evaluation:
    """Read what `pack_evaluation` wrote."""
    told = _reply(content, "evaluation").evaluation
    # What is squared and added up on the server must not overflow there.
    if not all(abs(value) < LARGEST_MEAN for value in (told.loss, *told.means.values())):
        raise MessageError("an evaluation beyond all bounds")
    if told.examples >= MOST_EXAMPLES:
        raise MessageError(f"an evaluation of {told.examples} examples")
    return Evaluation(loss=told.loss, held_out=Measured(told.examples, dict(told.means)))


def _packed_history(history: History) -> proto.History:
    return proto.History(counted=history.counted, recentred=history.recentred, digest=history.digest)


def _history(told: proto.History) -> History:
    return History(counted=told.counted, recentred=told.recentred, digest=told.digest)


def _question(content: RecordDict) -> proto.Question:
    return _parsed(proto.Question, head_of(content))


def _asked(question: proto.Question) -> Asked:
    asked = question.WhichOneof("asked")
    if asked is None:
        raise MessageError("a question that asks for nothing that this version knows")
    return cast(Asked, asked)


def _reply(content: RecordDict, expected: str) -> proto.Reply:
    reply = _parsed(proto.Reply, head_of(content))
    told = reply.WhichOneof("told")
    if told != expected:
        raise MessageError(f"a reply that is {told or 'nothing'} where a {expected} was expected")
    return reply


_Proto = TypeVar("_Proto", proto.Question, proto.Reply)


def _parsed(kind: type[_Proto], data: bytes) -> _Proto:
    try:
        return cast(_Proto, kind.FromString(data))
    except ProtoError:
        raise MessageError(f"bytes that are no {kind.__name__}") from None
