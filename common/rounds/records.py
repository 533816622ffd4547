"""What is written down of a round: one line of rounds.jsonl, and where it was deployed one of clients.jsonl."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from common.rounds.packing import pack, rows_of, unpack

BITS_A_VALUE = 32  # as the paper counts: values only, their places for free
PHASES = ("download", "train", "encode", "save", "upload")  # of a client's round; the link tells the first and the last
MOST_REASONS = 4  # why clients are missing, in one line; what is left is in one heap
MOST_NAMES = 10  # of the clients that are missing for one reason
OTHER_REASONS = "other reasons"
SECONDS_DIGITS = 4
MEGABYTES_DIGITS = 1
MOST_IN_ROWS = 20  # clients, whose line people can still read; those of more are packed, to a tenth


def utc_now() -> str:
    """Return the time as it is written down: ISO 8601, UTC, with milliseconds."""
    return utc_of(time.time())


def utc_of(seconds: float) -> str:
    """Return a moment, by time.time(), as it is written down."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Bytes that were sent for one purpose in one round."""

    payload_bytes_up: int | None = None  # our encoded vectors; None where nothing was encoded
    payload_bytes_down: int | None = None
    message_bytes_up: int | None = None  # and the messages around them; None where nothing went over a wire
    message_bytes_down: int | None = None


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The most that a client's process has taken so far."""

    memory_mb: float | None  # None: this system does not tell
    vram_mb: float | None = None  # None: it computes on its CPU


@dataclass(frozen=True, slots=True)
class Effort:
    """What a round took of a client's machine and link."""

    peak: PeakMemory
    seconds: dict[str, float]  # by phase; a round that was only sent again has none of the client's own


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRecord(Traffic):
    """What one client that was counted sent, was sent and took in one round of training."""

    paper_bits_up: int  # 32 bits a nonzero value
    memory_mb: float | None = None  # as in PeakMemory
    vram_mb: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # by phase


COUNTED = [one.name for one in fields(ClientRecord) if one.name not in ("memory_mb", "vram_mb", "seconds")]


@dataclass(frozen=True, slots=True)
class Missing:
    """The clients that were not counted for one reason."""

    clients: int
    names: list[str]  # of the first of them


def by_reason(missing: Mapping[str, str]) -> dict[str, Missing]:
    """Group clients by why they were not counted; the line stays short whatever a thousand of them say."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, why in sorted(missing.items()):
        names[why].append(name)
    ranked = sorted(names, key=lambda why: (-len(names[why]), why))
    groups = {why: names[why] for why in ranked[:MOST_REASONS]}
    if left := [name for why in ranked[MOST_REASONS:] for name in names[why]]:
        groups[OTHER_REASONS] = [*groups.get(OTHER_REASONS, ()), *left]
    return {why: Missing(len(group), group[:MOST_NAMES]) for why, group in groups.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRecord:
    """One line of rounds.jsonl; what is "a client" in it is a mean over all clients, counted in the round or not."""

    round: int
    time: str  # when it was done
    local_steps: int
    clients: int  # of the experiment
    clients_counted: int
    paper_bits_up: float  # 32 bits a nonzero value, a client, summed over the rounds so far
    density_up: float  # of this round's uploads, mean over those counted
    density_down: float  # of the model that this round started from
    control_sum_norm: float | None  # |mean of h_i| / mean of |h_i|; None without control variates
    seconds: float  # without the evaluation
    metrics: dict[str, float]
    clients_missing: dict[str, Missing] = field(default_factory=dict)  # by why they were not counted
    # For training, of all clients together.
    payload_bytes_up: int | None = None
    payload_bytes_down: int | None = None
    message_bytes_up: int | None = None
    message_bytes_down: int | None = None
    traffic_beside_training: dict[str, Traffic] = field(default_factory=dict)  # by purpose, of all clients together
    waited_for: str = ""  # the client whose upload was counted last
    seconds_by_phase: dict[str, float] = field(default_factory=dict)  # of that client
    by_client: dict[str, ClientRecord] = field(default_factory=dict)  # of those counted; not in the line

    @property
    def all_message_bytes(self) -> tuple[int, int]:
        """Return what went over the wire in this round for whatever purpose: up, down."""
        others = self.traffic_beside_training.values()
        up = (self.message_bytes_up or 0) + sum(one.message_bytes_up or 0 for one in others)
        return up, (self.message_bytes_down or 0) + sum(one.message_bytes_down or 0 for one in others)

    @property
    def missing_names(self) -> list[str]:
        """Return who was not counted, as far as the line names them."""
        return sorted(name for group in self.clients_missing.values() for name in group.names)

    def to_json(self) -> str:
        """Return the record as one line, without what is each client's own."""
        values = asdict(replace(self, by_client={}))
        del values["by_client"]
        return json.dumps(values, allow_nan=False)

    @classmethod
    def of_json(cls, line: str) -> RoundRecord:
        """Read what `to_json` wrote."""
        values = json.loads(line)
        beside = {purpose: Traffic(**one) for purpose, one in values["traffic_beside_training"].items()}
        missing = {why: Missing(**group) for why, group in values["clients_missing"].items()}
        return cls(**{**values, "traffic_beside_training": beside, "clients_missing": missing})

    def clients_to_json(self) -> str:
        """Return what is each client's own as one line, packed where it would be a long one."""
        names, columns = list(self.by_client), _columns(list(self.by_client.values()))
        is_long = len(names) > MOST_IN_ROWS
        own = {"packed": pack(names, columns)} if is_long else {"clients": rows_of(names, columns)}
        return json.dumps({"round": self.round, **own}, allow_nan=False, separators=(",", ":"))


def _columns(clients: Sequence[ClientRecord]) -> dict[str, list[Any]]:
    """Return what is known of clients, column by column, as precisely as anybody will read it."""
    columns: dict[str, list[Any]] = {name: [getattr(one, name) for one in clients] for name in COUNTED}
    columns |= {name: [_short(getattr(one, name)) for one in clients] for name in ("memory_mb", "vram_mb")}
    for phase in PHASES:
        seconds = [one.seconds.get(phase) for one in clients]
        columns[f"seconds.{phase}"] = [None if one is None else round(one, SECONDS_DIGITS) for one in seconds]
    return {name: column for name, column in columns.items() if any(one is not None for one in column)}


def clients_of_json(line: str) -> tuple[int, dict[str, ClientRecord]]:
    """Read what `clients_to_json` wrote: the round, and its clients by name."""
    values = json.loads(line)
    clients = unpack(values["packed"]) if "packed" in values else values["clients"]
    return int(values["round"]), {name: ClientRecord(**one) for name, one in clients.items()}


def _short(megabytes: float | None) -> float | None:
    return None if megabytes is None else round(megabytes, MEGABYTES_DIGITS)
