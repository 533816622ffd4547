"""Our types <-> Flower records: with pieces.py the only place that knows key strings.

Every message has one Array at most, because Flower moves each Array in requests of its own: its bytes are a payload
(common/codec/payload.py). What is not a vector is in one ConfigRecord.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from common.codec import payload
from common.errors import DecodeError, MessageError
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.learning.task import Measured
from common.messages.pieces import VECTORS_RECORD, payload_in, record_of
from common.rounds.records import PHASES, PeakMemory
from common.rounds.state import ReceivedUpload, RoundPlan, ServerState, Upload
from common.storage.spool import Spool

_EXPERIMENT = "experiment"  # in the run's configuration: a name, a path or the YAML text itself
_SETTINGS = "settings"  # key=value, separated by spaces
_RUN = "run"  # what a client's memory belongs to

_CONFIG = "proxskip"
_METRICS = "metrics"
_COUNTED = "counted"
_RECENTRING = "recentring"
_CLIENT = "client"
_IDENTITY = "identity"
_NOTICE = "notice"
_ROUND = "round"
_SECONDS = "seconds"
_MEMORY = "peak-memory-mb"
_VRAM = "peak-vram-mb"
_LOSS = "loss"
_EXAMPLES = "examples"

NOTICE = "notice"  # the kind of query that only says something
LONGEST_NAME = 100
LARGEST_MEAN = 1e100
MOST_EXAMPLES = 2**53  # what a float counts exactly

AUDIT = "audit"  # the kind of query that asks for a control variate
RECENTRE = "recentre"  # the kind that brings what is to be taken from it

_Kind = TypeVar("_Kind", ArrayRecord, ConfigRecord, MetricRecord)
_Upload = TypeVar("_Upload", bytes | Spool, ReceivedUpload)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What goes down to a client for one round."""

    plan: RoundPlan
    counted: int  # the last round in which this client's upload was counted; 0 = never
    state: ServerState
    average: Tensor | None = None  # of the counted round, where it is not the state's model


@dataclass(frozen=True, kw_only=True)
class Recentring:
    """What a member has to take from its control variate, once, as another has gone with its own."""

    number: int
    counted: int  # the last round in which this client's upload was counted
    shift: Tensor
    average: Tensor | None  # of the counted round


@dataclass(frozen=True, kw_only=True)
class Report(Generic[_Upload]):
    """What comes up from a client after one round: its upload in bytes, or as the server reads it."""

    client: str
    round: int
    seconds: dict[str, float]  # that the round took on the client, by phase; none where it was only sent again
    peak: PeakMemory
    upload: _Upload


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


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a client is told of a run when it first hears of it."""

    experiment: Experiment
    name: str  # what a client's memory belongs to: the same when the server was restarted


def pack_run(run: Run) -> dict[str, bool | float | int | str]:
    """Write the configuration of a Flower run: the experiment goes as text, so that both sides read the same."""
    return {_EXPERIMENT: run.experiment.to_yaml(), _SETTINGS: "", _RUN: run.name}


def unpack_run(config: Mapping[str, object], run_id: int) -> Run:
    """Read it: what `pack_run` wrote, or what a user of `flwr run` gave with --run-config."""
    given, settings = str(config.get(_EXPERIMENT, "")), str(config.get(_SETTINGS, ""))
    if not given:
        raise MessageError("a run without an experiment in its configuration")
    return Run(experiment=load_experiment(given, settings.split()), name=str(config.get(_RUN) or run_id))


def pack_state(state: ServerState, average: Tensor | None = None) -> ArrayRecord:
    """Write what the server sends down: losslessly, as an average must not be changed on the way."""
    return record_of(payload.encode_state(state, average))


def unpack_state(arrays: ArrayRecord, like: ServerState) -> ServerState:
    """Read what `pack_state` wrote; `like` gives the sizes."""
    return _state(arrays, like)[0]


def pack_order(arrays: ArrayRecord, plan: RoundPlan, counted: int) -> RecordDict:
    """Write a round's order around the packed state, which all clients share."""
    return RecordDict({VECTORS_RECORD: arrays, _CONFIG: ConfigRecord({**asdict(plan), _COUNTED: counted})})


def unpack_order(content: RecordDict, like: ServerState) -> Order:
    """Read what `pack_order` wrote."""
    config = dict(_record(content, _CONFIG, ConfigRecord))
    counted = config.pop(_COUNTED, None)
    try:
        plan = RoundPlan(**cast(dict[str, Any], config))
    except TypeError as error:
        raise MessageError(f"the plan of a round is not as expected: {error}") from None
    if not isinstance(counted, int):
        raise MessageError("a plan without the last counted round")
    state, average = _state(_record(content, VECTORS_RECORD, ArrayRecord), like)
    return Order(plan=plan, counted=counted, state=state, average=average)


def pack_report(report: Report[bytes | Spool]) -> RecordDict:
    """Write what a client uploads."""
    config = ConfigRecord(
        {
            _CLIENT: report.client,
            _ROUND: report.round,
            **{f"{_SECONDS}-{phase}": seconds for phase, seconds in report.seconds.items()},
            _MEMORY: _or_unknown(report.peak.memory_mb),
            _VRAM: _or_unknown(report.peak.vram_mb),
        }
    )
    return RecordDict({VECTORS_RECORD: record_of(report.upload), _CONFIG: config})


def unpack_report(content: RecordDict, like: ServerState, most_values: int | None = None) -> Report[ReceivedUpload]:
    """Read what `pack_report` wrote."""
    config = _record(content, _CONFIG, ConfigRecord)
    client, number = config.get(_CLIENT), config.get(_ROUND)
    memory, vram = config.get(_MEMORY), config.get(_VRAM)
    if not (isinstance(client, str) and isinstance(number, int) and _is_number(memory) and _is_number(vram)):
        raise MessageError("a report without client, round and peak memory")
    assert isinstance(memory, float)
    assert isinstance(vram, float)
    try:
        upload = payload.decode_upload(payload_in(_record(content, VECTORS_RECORD, ArrayRecord)), like, most_values)
    except DecodeError as error:
        raise MessageError(str(error)) from None
    peak = PeakMemory(memory if memory >= 0 else None, vram if vram >= 0 else None)
    return Report(client=client, round=number, seconds=_seconds(config), peak=peak, upload=upload)


def _seconds(config: ConfigRecord) -> dict[str, float]:
    """Read what a client says of the phases of its round."""
    told = {phase: config[f"{_SECONDS}-{phase}"] for phase in PHASES if f"{_SECONDS}-{phase}" in config}
    seconds = {phase: value for phase, value in told.items() if isinstance(value, float) and 0 <= value < math.inf}
    if len(seconds) < len(told):
        raise MessageError("a report whose phases took no number of seconds")
    return seconds


def _or_unknown(megabytes: float | None) -> float:
    """Return a number as a record takes it: below zero for one that is not known."""
    return -1.0 if megabytes is None else megabytes


def pack_introduction(introduction: Introduction) -> RecordDict:
    """Write a client's answer to the server's first question, who it is."""
    return RecordDict({_CONFIG: ConfigRecord({_CLIENT: introduction.client, _IDENTITY: introduction.identity})})


def unpack_introduction(content: RecordDict) -> Introduction:
    """Read who a client is."""
    config = _record(content, _CONFIG, ConfigRecord)
    client, identity = config.get(_CLIENT), config.get(_IDENTITY)
    if not isinstance(client, str) or not 0 < len(client) <= LONGEST_NAME:
        raise MessageError(f"a client without a name of at most {LONGEST_NAME} characters")
    if not isinstance(identity, str) or not 0 < len(identity) <= LONGEST_NAME:
        raise MessageError("a client without an identity")
    return Introduction(client=client, identity=identity)


def pack_notice(text: str) -> RecordDict:
    """Write what the operator of a client should know."""
    return RecordDict({_CONFIG: ConfigRecord({_NOTICE: text})})


def unpack_notice(content: RecordDict) -> str:
    """Read it."""
    return str(_record(content, _CONFIG, ConfigRecord).get(_NOTICE, ""))


def pack_control(control: Tensor) -> RecordDict:
    """Write a client's control variate, which it shows to nobody but an auditor."""
    return RecordDict({VECTORS_RECORD: record_of(payload.encode_upload(Upload(model=control), "float32"))})


def unpack_control(content: RecordDict, like: ServerState) -> Tensor:
    """Read the control variate."""
    try:
        data = payload_in(_record(content, VECTORS_RECORD, ArrayRecord))
        return payload.decode_upload(data, ServerState(model=like.model)).model.dense()
    except DecodeError as error:
        raise MessageError(str(error)) from None


def pack_recentring(recentring: Recentring) -> RecordDict:
    """Write what is to be taken from a control variate."""
    arrays = pack_state(ServerState(model=recentring.shift), recentring.average)
    config = ConfigRecord({_RECENTRING: recentring.number, _COUNTED: recentring.counted})
    return RecordDict({VECTORS_RECORD: arrays, _CONFIG: config})


def unpack_recentring(content: RecordDict, like: ServerState) -> Recentring:
    """Read what `pack_recentring` wrote."""
    config = _record(content, _CONFIG, ConfigRecord)
    number, counted = config.get(_RECENTRING), config.get(_COUNTED)
    if not (isinstance(number, int) and isinstance(counted, int)):
        raise MessageError("a re-centring without its number and the last counted round")
    vectors, average = _state(_record(content, VECTORS_RECORD, ArrayRecord), ServerState(model=like.model))
    return Recentring(number=number, counted=counted, shift=vectors.model, average=average)


def pack_evaluation(evaluation: Evaluation) -> RecordDict:
    """Write what a client says of the model that it was sent."""
    held_out = evaluation.held_out
    return RecordDict(
        {_METRICS: MetricRecord({**held_out.means, _LOSS: evaluation.loss, _EXAMPLES: float(held_out.examples)})}
    )


def unpack_evaluation(content: RecordDict) -> Evaluation:
    """Read what `pack_evaluation` wrote."""
    numbers = dict(_record(content, _METRICS, MetricRecord))
    means = {name: value for name, value in numbers.items() if isinstance(value, float)}
    # What is squared and added up on the server must not overflow there.
    if not (means.keys() >= {_LOSS, _EXAMPLES} and all(abs(value) < LARGEST_MEAN for value in means.values())):
        raise MessageError("an evaluation without a loss and a number of examples within bounds")
    loss, examples = means.pop(_LOSS), means.pop(_EXAMPLES)
    if not 0 <= examples < MOST_EXAMPLES:
        raise MessageError(f"an evaluation of {examples:g} examples")
    return Evaluation(loss=loss, held_out=Measured(int(examples), means))


def _state(arrays: ArrayRecord, like: ServerState) -> tuple[ServerState, Tensor | None]:
    try:
        return payload.decode_state(payload_in(arrays), like)
    except DecodeError as error:
        raise MessageError(str(error)) from None


def _is_number(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _record(content: RecordDict, key: str, kind: type[_Kind]) -> _Kind:
    record = content.get(key)
    if not isinstance(record, kind):
        raise MessageError(f"a message without {key!r}")
    return record
