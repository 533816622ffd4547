"""Our types <-> Flower records: the only place that knows key strings and counts payload bytes.

Every message has one Array at most, because Flower moves each Array in requests of its own. Its bytes are four
lengths (uint32, little-endian) and four encoded vectors: the model, the control of Scaffold, the BatchNorm statistics,
and the average of an older round for a client that missed some; what is not there has length 0. What is not a vector
is in one ConfigRecord.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from common.codec import DecodeError, decode, encode
from common.experiment import Experiment, load_experiment
from common.types import Precision, RoundPlan, ServerState, Upload

_EXPERIMENT = "experiment"  # in the run's configuration: a name, a path or the YAML text itself
_SETTINGS = "settings"  # key=value, separated by spaces
_RUN = "run"  # what a client's memory belongs to

_VECTORS = "vectors"
_PAYLOAD = "payload"
_CONFIG = "proxskip"
_METRICS = "metrics"
_COUNTED = "counted"
_CLIENT = "client"
_ROUND = "round"
_SECONDS = "seconds"
_LENGTHS = struct.Struct("<IIII")

_Kind = TypeVar("_Kind", ArrayRecord, ConfigRecord, MetricRecord)


class MessageError(ValueError):
    """A message that does not say what it must."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What goes down to a client for one round."""

    plan: RoundPlan
    counted: int  # the last round in which this client's upload was counted; 0 = never
    state: ServerState
    average: Tensor | None = None  # of the counted round, where it is not the state's model


@dataclass(frozen=True, kw_only=True)
class Report:
    """What comes up from a client after one round."""

    client: str
    round: int
    seconds: float  # that the round took on the client
    upload: Upload


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
    return _pack((state.model, state.control, state.buffers, average), "float32")


def unpack_state(arrays: ArrayRecord, like: ServerState) -> ServerState:
    """Read what `pack_state` wrote; `like` gives the sizes."""
    model, control, buffers, _ = _unpack(arrays, like)
    return ServerState(model=model, control=control, buffers=buffers)


def pack_order(arrays: ArrayRecord, plan: RoundPlan, counted: int) -> RecordDict:
    """Write a round's order around the packed state, which all clients share."""
    return RecordDict({_VECTORS: arrays, _CONFIG: ConfigRecord({**asdict(plan), _COUNTED: counted})})


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
    model, control, buffers, average = _unpack(_record(content, _VECTORS, ArrayRecord), like)
    state = ServerState(model=model, control=control, buffers=buffers)
    return Order(plan=plan, counted=counted, state=state, average=average)


def pack_report(report: Report, precision: Precision) -> RecordDict:
    """Write what a client uploads."""
    upload = report.upload
    config = ConfigRecord({_CLIENT: report.client, _ROUND: report.round, _SECONDS: report.seconds})
    vectors = _pack((upload.model, upload.control_change, upload.buffers, None), precision)
    return RecordDict({_VECTORS: vectors, _CONFIG: config})


def unpack_report(content: RecordDict, like: ServerState) -> Report:
    """Read what `pack_report` wrote."""
    config = _record(content, _CONFIG, ConfigRecord)
    client, number, seconds = config.get(_CLIENT), config.get(_ROUND), config.get(_SECONDS)
    if not (isinstance(client, str) and isinstance(number, int) and isinstance(seconds, float)):
        raise MessageError("a report without client, round and seconds")
    model, control, buffers, _ = _unpack(_record(content, _VECTORS, ArrayRecord), like)
    upload = Upload(model=model, control_change=control, buffers=buffers)
    return Report(client=client, round=number, seconds=seconds, upload=upload)


def pack_introduction(client: str) -> RecordDict:
    """Write a client's answer to the server's first question, who it is."""
    return RecordDict({_CONFIG: ConfigRecord({_CLIENT: client})})


def unpack_introduction(content: RecordDict) -> str:
    """Read the client's name."""
    client = _record(content, _CONFIG, ConfigRecord).get(_CLIENT)
    if not isinstance(client, str) or not client:
        raise MessageError("a client without a name")
    return client


def pack_evaluation(loss: float) -> RecordDict:
    """Write a client's loss at the model it was sent."""
    return RecordDict({_METRICS: MetricRecord({"loss": loss})})


def unpack_evaluation(content: RecordDict) -> float:
    """Read the loss."""
    loss = _record(content, _METRICS, MetricRecord).get("loss")
    if not isinstance(loss, float):
        raise MessageError("an evaluation without a loss")
    return loss


def payload_bytes(content: RecordDict | ArrayRecord) -> int:
    """Return the size of the encoded vectors in a message."""
    arrays = content if isinstance(content, ArrayRecord) else _record(content, _VECTORS, ArrayRecord)
    return sum(len(array.data) for array in arrays.values())


def _pack(vectors: Sequence[Tensor | None], precision: Precision) -> ArrayRecord:
    # Only the model is rounded to the upload's precision; statistics and controls stay as they are.
    parts = [
        b"" if vector is None else encode(vector, precision if place == 0 else "float32")
        for place, vector in enumerate(vectors)
    ]
    data = b"".join([_LENGTHS.pack(*map(len, parts)), *parts])
    return ArrayRecord({_PAYLOAD: Array(dtype="uint8", shape=(len(data),), stype="proxskip", data=data)})


def _unpack(arrays: ArrayRecord, like: ServerState) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    array = arrays.get(_PAYLOAD)
    if array is None or len(array.data) < _LENGTHS.size:
        raise MessageError("a message without a payload")
    data = memoryview(array.data)
    lengths = _LENGTHS.unpack_from(data)
    if _LENGTHS.size + sum(lengths) != len(data):
        raise MessageError(f"{len(data)} bytes where the lengths add up to {_LENGTHS.size + sum(lengths)}")
    ends = list(accumulate(lengths, initial=_LENGTHS.size))
    parts = [data[start:end] for start, end in pairwise(ends)]
    model = _vector("model", parts[0], like.model)
    if model is None:
        raise MessageError("a message without a model")
    control = _vector("control", parts[1], like.control)
    buffers = _vector("buffers", parts[2], like.buffers)
    return model, control, buffers, _vector("average", parts[3], like.model) if parts[3] else None


def _vector(name: str, data: memoryview, like: Tensor | None) -> Tensor | None:
    if bool(data) != (like is not None):
        raise MessageError(f"{name}: {len(data)} bytes, which does not go with this method and task")
    if like is None:
        return None
    try:
        return decode(data, like.shape[-1])
    except DecodeError as error:
        raise MessageError(f"{name}: {error}") from None


def _record(content: RecordDict, key: str, kind: type[_Kind]) -> _Kind:
    record = content.get(key)
    if not isinstance(record, kind):
        raise MessageError(f"a message without {key!r}")
    return record
