"""What is written down of a round: one line of rounds.jsonl."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

BITS_A_VALUE = 32  # as the paper counts: values only, their places for free


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Bytes that were sent for one purpose in one round."""

    payload_bytes_up: int | None = None  # our encoded vectors; None where nothing was encoded
    payload_bytes_down: int | None = None
    message_bytes_up: int | None = None  # and the messages around them; None where nothing went over a wire
    message_bytes_down: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientTraffic(Traffic):
    """What one client sent and was sent in one round of training."""

    paper_bits_up: int  # 32 bits a nonzero value


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The most that a client's process has taken so far."""

    memory_mb: float | None  # None: this system does not tell
    vram_mb: float | None = None  # None: it computes on its CPU


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRecord:
    """One line of rounds.jsonl; what is "a client" in it is a mean over all clients, counted in the round or not."""

    round: int
    local_steps: int
    clients: int  # of the experiment
    clients_counted: int
    paper_bits_up: float  # 32 bits a nonzero value, a client, summed over the rounds so far
    density_up: float  # of this round's uploads, mean over those counted
    density_down: float  # of the model that this round started from
    control_sum_norm: float | None  # |mean of h_i| / mean of |h_i|; None without control variates
    seconds: float  # without the evaluation
    metrics: dict[str, float]
    clients_missing: dict[str, str] = field(default_factory=dict)  # name: why it was not counted
    # For training, of all clients together.
    payload_bytes_up: int | None = None
    payload_bytes_down: int | None = None
    message_bytes_up: int | None = None
    message_bytes_down: int | None = None
    traffic_beside_training: dict[str, Traffic] = field(default_factory=dict)  # by purpose, of all clients together
    traffic_by_client: dict[str, ClientTraffic] = field(default_factory=dict)  # for training, of those counted
    memory_by_client: dict[str, PeakMemory] = field(default_factory=dict)
    seconds_by_phase: dict[str, float] = field(default_factory=dict)

    @property
    def all_message_bytes(self) -> tuple[int, int]:
        """Return what went over the wire in this round for whatever purpose: up, down."""
        others = self.traffic_beside_training.values()
        up = (self.message_bytes_up or 0) + sum(one.message_bytes_up or 0 for one in others)
        return up, (self.message_bytes_down or 0) + sum(one.message_bytes_down or 0 for one in others)

    def to_json(self) -> str:
        """Return the record as one line."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def of_json(cls, line: str) -> RoundRecord:
        """Read what `to_json` wrote."""
        values = json.loads(line)
        kinds: dict[str, Callable[..., Any]] = {
            "traffic_beside_training": Traffic,
            "traffic_by_client": ClientTraffic,
            "memory_by_client": PeakMemory,
        }
        return cls(**{**values, **{name: _each(kind, values[name]) for name, kind in kinds.items()}})


def _each(kind: Callable[..., Any], values: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: kind(**value) for name, value in values.items()}
