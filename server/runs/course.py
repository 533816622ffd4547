"""How a run has gone so far: the few numbers that are shown of it, kept up round by round."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from common.errors import UserError
from common.rounds.records import ClientRecord, RoundRecord

ROUNDS_FOR_PACE = 50
ROUNDS_FOR_SLOWEST = 10
SHORTEST_UPLOAD_SECONDS = 0.05  # whose speed tells something of the link


@dataclass
class BytesPerClient:
    """What one client has sent and got, on average: its models, and with all that was around them."""

    payload_up: float = 0.0
    payload_down: float = 0.0
    wire_up: float = 0.0  # 0 where nothing went over a wire
    wire_down: float = 0.0

    def add(self, record: RoundRecord) -> None:
        """Count a round."""
        wire_up, wire_down = record.all_message_bytes
        self.payload_up += (record.payload_bytes_up or 0) / record.clients
        self.payload_down += (record.payload_bytes_down or 0) / record.clients
        self.wire_up += wire_up / record.clients
        self.wire_down += wire_down / record.clients


class Course:
    """Hears of every round; what was before a resume is told first."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.tell: Callable[[RoundRecord], None] = lambda _: None  # who else is to hear of each new round
        self.last: RoundRecord | None = None
        self.scores: list[float] = []
        self.best: tuple[float, int] | None = None  # score, round
        self.bytes = BytesPerClient()
        self.training_seconds = 0.0
        self.counted: Counter[str] = Counter()  # rounds, by client
        self.upload_bits_per_second: dict[str, float] = {}  # by client, as last seen
        self._slowest: deque[str] = deque(maxlen=ROUNDS_FOR_SLOWEST)
        self._ends: deque[float] = deque(maxlen=ROUNDS_FOR_PACE)  # of rounds of this process

    def catch_up(self, rounds: Iterable[RoundRecord], clients: Iterable[tuple[int, dict[str, ClientRecord]]]) -> None:
        """Hear of the rounds that were done before this process; lines that somebody has edited are passed over."""
        for record in rounds:
            with suppress(ArithmeticError, AttributeError, TypeError):
                self._note(record)
        with suppress(UserError):
            for _, counted in clients:
                self.counted.update(counted.keys())

    def add(self, record: RoundRecord) -> None:
        """Hear of a round that was just done."""
        self._note(record)
        self._ends.append(time.monotonic())
        self.counted.update(record.by_client.keys())
        for name, one in record.by_client.items():
            seconds = one.seconds.get("upload", 0.0)
            if seconds > SHORTEST_UPLOAD_SECONDS and one.message_bytes_up:
                self.upload_bits_per_second[name] = 8 * one.message_bytes_up / seconds
        self.tell(record)

    @property
    def round(self) -> int:
        """Return the last round that is done."""
        return self.last.round if self.last else 0

    @property
    def seconds_per_round(self) -> float | None:
        """Return how long a round takes these days, with its evaluation."""
        ends = list(self._ends)
        if len(ends) < 2:
            return self.last.seconds if ends and self.last else None
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    def times_slowest(self, name: str) -> int:
        """Return in how many of the last ten rounds the others waited for a client."""
        return list(self._slowest).count(name)

    def _note(self, record: RoundRecord) -> None:
        self.bytes.add(record)
        self.last = record
        self.training_seconds += record.seconds
        if record.waited_for and record.clients_counted > 1:
            self._slowest.append(record.waited_for)
        score = record.metrics.get(self.metric)
        if score is not None:
            self.scores.append(score)
            if self.best is None or score > self.best[0]:
                self.best = (score, record.round)
