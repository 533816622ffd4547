"""The data of one round: what goes down, what comes up, what each side keeps.

A model is one flat float32 vector (last dimension d). Any leading dimensions are a batch of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.ledger import Ledger

Precision = Literal["float32", "bfloat16"]

Places = NDArray[np.int32]
Block = tuple[slice | Places, NDArray[np.float32]]  # where, and what is there

BLOCK = 1 << 16  # entries that are dealt with at a time: they stay in the cache
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
class Entries:
    """A vector by its entries: those at some places, all others being zero, or all."""

    size: int
    places: Places | None  # increasing; None: all
    values: NDArray[np.float32]

    def blocks(self) -> Iterator[Block]:
        """Yield the entries part by part."""
        for start in range(0, self.values.size, BLOCK):
            here = slice(start, start + BLOCK)
            yield here if self.places is None else self.places[here], self.values[here]

    def dense(self) -> Tensor:
        """Return the vector; where all entries are given, it shares their memory."""
        if self.places is None:
            return torch.from_numpy(self.values)
        vector = np.zeros(self.size, np.float32)
        vector[self.places] = self.values
        return torch.from_numpy(vector)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """A vector whose entries are all given, read block by block whenever it is wanted."""

    size: int
    read: Callable[[], Iterator[NDArray[np.float32]]]  # may find at any block that it cannot be read

    def blocks(self) -> Iterator[Block]:
        """Yield the entries part by part."""
        start = 0
        for values in self.read():
            yield slice(start, start + values.size), values
            start += values.size

    def entries(self) -> Entries:
        """Return the vector in memory."""
        return Entries(size=self.size, places=None, values=joined(self.read(), self.size))

    def dense(self) -> Tensor:
        """Return the vector."""
        return self.entries().dense()


def joined(blocks: Iterable[NDArray[np.float32]], size: int) -> NDArray[np.float32]:
    """Return blocks one after the other, of which no second copy is made."""
    values, start = np.empty(size, np.float32), 0
    for block in blocks:
        values[start : start + block.size] = block
        start += block.size
    return values


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedUpload:
    """An upload as the server reads it: only what was sent takes memory, and of a file no more than a block."""

    model: Entries | Blocks
    control_change: Entries | Blocks | None = None
    buffers: Entries | Blocks | None = None


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
    settled: int = 0  # the last round that was counted and is closed in the control; 0 = none yet
    recentred: int = 0  # how often the mean of all controls was taken from this one
    pending: Pending | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """All that the server has to know to go on after a round."""

    round: int  # the last one that is done
    state: ServerState
    ledger: Ledger = field(default_factory=Ledger)
    bits_up: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What one client sent and was sent in one round."""

    paper_bits_up: int  # 32 bits a nonzero value
    payload_bytes_up: int | None  # our encoded vectors; None where nothing was encoded
    payload_bytes_down: int | None
    message_bytes_up: int | None = None  # and Flower's messages around them; None where nothing went over a wire
    message_bytes_down: int | None = None


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The most that a client's process has taken so far."""

    memory_mb: float | None  # None: this system does not tell
    vram_mb: float | None = None  # None: it computes on its CPU


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
    # Of all clients together, in this round.
    payload_bytes_up: int | None = None  # our encoded vectors; None where nothing was encoded
    payload_bytes_down: int | None = None
    message_bytes_up: int | None = None  # all requests of the round; None where nothing went over a wire
    message_bytes_down: int | None = None
    traffic_by_client: dict[str, Traffic] = field(default_factory=dict)
    memory_by_client: dict[str, PeakMemory] = field(default_factory=dict)
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
