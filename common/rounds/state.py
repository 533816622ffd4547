"""The data of one round: what goes down, what comes up, what each side keeps.

A model is one flat float32 vector (last dimension d). Any leading dimensions are a batch of clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torch import Tensor

from common.ranges import Range
from common.rounds.history import History
from common.storage.spool import Spool
from common.vectors.entries import Blocks, Entries

Precision = Literal["float32", "bfloat16", "grid"]
MOST_CLIENTS = 10**6


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundPlan:
    """What every client is told to do in one round."""

    round: int
    local_steps: int
    probability: float  # p: one over the mean number of local steps
    learning_rate: float  # gamma
    density: float  # K / d
    precision: Precision  # of the uploaded values
    step: Annotated[float, Range(at_least=0, at_most=2.0**100)] = 0.0  # of the grid, a power of two; 0 without one
    client: int | tuple[int, ...] = 0  # by which its roundings differ from others'; of a batch, a number for each row
    seed: int = 0  # of the round's random choices, beside its number
    cohort: int = 1  # how many clients are asked
    seats: tuple[int, ...] | range = (0,)  # which of them: this client, or each row, or whose uploads were counted


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """What the server holds between two rounds, and sends down at the start of the next one."""

    model: Tensor  # w
    control: Tensor | None = None  # what a method shows all clients beside its model, such as c of Scaffold
    buffers: Tensor | None = None  # BatchNorm statistics: averaged, never pruned
    unit: float = 0.0  # of which the model's values are whole multiples, nearly: a step over the number of clients


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """What a client sends up at the end of a round; the mean of all uploads has the same form."""

    model: Tensor  # w^_i
    control_change: Tensor | None = None  # of Scaffold only
    buffers: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedUpload:
    """An upload as the server reads it: only what was sent takes memory, and of a file no more than a block."""

    model: Entries | Blocks
    control_change: Entries | Blocks | None = None
    buffers: Entries | Blocks | None = None
    checksum: int = 0  # of all of it, as it came


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """A round that a client has finished and whose average it does not know yet."""

    plan: RoundPlan
    reference: Tensor | None  # what the control is closed with; None: w^_i, to be read from what was sent
    sent: bytes | Spool = b""  # the upload
    given: int = 0  # the digest of the kept model that it is given; 0: none
    checksum: int = 0  # of the upload


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientMemory:
    """What a client keeps from round to round and shows to nobody."""

    control: Tensor | None = None  # h_i
    history: History = field(default_factory=History)  # of the control
    pending: Pending | None = None
    kept: Mapping[int, bytes | Spool] = field(default_factory=dict)  # the last models that came down, by their digests
