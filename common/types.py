"""The data of one round: what goes down, what comes up, what each side keeps.

A model is one flat float32 vector (last dimension d). Any leading dimensions are a batch of clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Precision = Literal["float32", "bfloat16"]

BITS_A_VALUE = 32  # as the paper counts: values only, their places for free


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundPlan:
    """What every client is told to do in one round."""

    round: int
    local_steps: int
    probability: float  # p: one over the mean number of local steps
    learning_rate: float  # gamma
    density: float  # K / d
    precision: Precision  # of the uploaded values


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """What the server holds between two rounds, and sends down at the start of the next one."""

    model: Tensor  # w
    control: Tensor | None = None  # c, of Scaffold only
    buffers: Tensor | None = None  # BatchNorm statistics: averaged, never pruned


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """What a client sends up at the end of a round; the mean of all uploads has the same form."""

    model: Tensor  # w^_i
    control_change: Tensor | None = None  # of Scaffold only
    buffers: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """A round that a client has finished and whose average it does not know yet."""

    plan: RoundPlan
    upload: Upload  # asked again for this round, the client sends the same
    reference: Tensor  # what the control is closed with: w^_i, mostly


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientMemory:
    """What a client keeps from round to round and shows to nobody."""

    control: Tensor | None = None  # h_i
    pending: Pending | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRecord:
    """One line of rounds.jsonl."""

    round: int
    local_steps: int
    clients_counted: int
    paper_bits_up: float  # 32 bits a nonzero value, mean over clients, summed over the rounds so far
    density_up: float  # of this round's uploads, mean over clients
    density_down: float  # of the model that this round started from
    control_sum_norm: float | None  # |mean of h_i| / mean of |h_i|; None without control variates
    seconds: float  # without the evaluation
    metrics: dict[str, float]
    clients_missing: dict[str, str] = field(default_factory=dict)  # name: why it was not counted
    # Of all clients together, in this round; None where nothing went over a wire.
    payload_bytes_up: int | None = None  # our encoded vectors
    payload_bytes_down: int | None = None
    message_bytes_up: int | None = None  # the messages of Flower around them, all requests of the round
    message_bytes_down: int | None = None
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
