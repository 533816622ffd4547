"""What is written down of a round: one line of rounds.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field

BITS_A_VALUE = 32  # as the paper counts: values only, their places for free


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
