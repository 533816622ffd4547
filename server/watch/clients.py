"""What is each client's own: the last rounds of clients.jsonl first, and the sums over all of them as time allows."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from common.rounds.records import PHASES, ClientRecord, clients_of_json
from server.runs.run_folder import CLIENTS
from server.watch.growing_file import MOST_BYTES, GrowingFile, start_of_last_lines
from server.watch.loose import count, number, table, text
from server.watch.rounds import STRIP_ROUNDS

MOST_CLIENTS = 10_000  # whose names are kept: nobody has so many
SECONDS_FOR_SUMS = 0.2  # at a time
SUMS_BYTES = 1 << 18  # at a time


class Latest(NamedTuple):
    """The newest round in which a client was counted."""

    round: int
    record: ClientRecord

    @property
    def phases(self) -> dict[str, float]:
        """Return the seconds of each phase, as far as they are known."""
        seconds = table(self.record.seconds)
        known = {phase: number(seconds.get(phase)) for phase in PHASES}
        return {phase: value for phase, value in known.items() if value is not None and value >= 0}


class ClientLines:
    """The last rounds of all clients, the newest of each, and what each has sent so far."""

    def __init__(self, folder: Path) -> None:
        self._file = GrowingFile(folder / CLIENTS)
        self._early = GrowingFile(folder / CLIENTS)  # the same, for what is before the last rounds
        self._begun = False
        self._forget()

    def _forget(self) -> None:
        self.rounds: deque[tuple[int, dict[str, float]]] = deque(maxlen=STRIP_ROUNDS)  # seconds by client
        self.latest: dict[str, Latest] = {}
        self.sent: Counter[str] = Counter()  # encoded bytes
        self.counted: Counter[str] = Counter()  # rounds
        self.lines = 0  # of which the sums are
        self._early.start_at(0)
        self._early_end = 0

    @property
    def are_sums_complete(self) -> bool:
        """Say whether all rounds are in the sums."""
        return self._early.offset >= self._early_end

    def refresh(self) -> None:
        """Read what is new, and for a moment what is old."""
        if not self._begun:
            self._begin_near_the_end()
        for news in self._file.readings():
            if news.anew:
                self._forget()
            self._each(news.lines, self._add)
        end = time.monotonic() + SECONDS_FOR_SUMS
        while not self.are_sums_complete and time.monotonic() < end:
            left = self._early_end - self._early.offset
            lines = self._early.read(min(SUMS_BYTES, left)).lines or self._early.read(min(MOST_BYTES, left)).lines
            self._each(lines, self._add_to_sums)
            if not lines:
                self._early_end = self._early.offset  # it was cut, or has a line of nonsense

    def _begin_near_the_end(self) -> None:
        try:
            self._early_end = start_of_last_lines(self._file.path, STRIP_ROUNDS)
        except FileNotFoundError:  # a simulation has none
            return
        self._file.start_at(self._early_end)
        self._begun = True

    @staticmethod
    def _each(lines: Iterable[bytes], add: Callable[[int, dict[str, ClientRecord]], None]) -> None:
        for line in lines:
            try:
                number_of_round, clients = clients_of_json(line.decode())
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
                continue
            add(number_of_round, {_shown_name(name): one for name, one in clients.items()})

    def _add(self, number_of_round: int, clients: dict[str, ClientRecord]) -> None:
        seconds = {}
        for name, record in clients.items():
            if name in self.latest or len(self.latest) < MOST_CLIENTS:
                self.latest[name] = Latest(number_of_round, record)
                seconds[name] = sum(self.latest[name].phases.values())
        self.rounds.append((number_of_round, seconds))
        self._add_to_sums(number_of_round, clients)

    def _add_to_sums(self, _: int, clients: dict[str, ClientRecord]) -> None:
        self.lines += 1
        for name, record in clients.items():
            if name in self.latest or len(self.counted) < MOST_CLIENTS:
                self.sent[name] += count(record.payload_bytes_up) or 0
                self.counted[name] += 1


@lru_cache(MOST_CLIENTS)  # the same names come in every round
def _shown_name(name: object) -> str:
    return text(name)
