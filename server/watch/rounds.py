"""The rounds of a run as columns to draw and sums to show, kept up with rounds.jsonl as it grows."""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from common.rounds.records import MOST_NAMES
from server.runs.run_folder import ROUNDS
from server.watch.downsample import few
from server.watch.growing_file import GrowingFile
from server.watch.loose import clock, count, json_object, names, number, table, text

MOST_SPARKS = 40
STRIP_ROUNDS = 200  # the last, which are shown client by client
RECENT = 20  # rounds, of which the median says how long one takes
NOT_EVALUATED = math.nan
BYTES_A_BIT = 1 / 8


class Rounds:
    """What is known of all rounds so far; column by column, a row for each round."""

    def __init__(self, folder: Path) -> None:
        self._file = GrowingFile(folder / ROUNDS)
        self._forget()

    def _forget(self) -> None:
        self.numbers = array("q")
        self.clocks = array("d")  # when each was done, in seconds since 1970
        self.elapsed = array("d")  # seconds of work on the run until then
        self.seconds = array("d")  # of each
        self._sent = Counter[
            int
        ]()  # encoded bytes, by how many clients there were: whole numbers, which add up exactly
        self.payload = array("d")  # encoded bytes that a client has sent until then
        self.values = array("d")  # the same counted as 4 bytes for each nonzero value
        self.scores = array("d")  # NOT_EVALUATED where there is none
        self.evaluated = array("q")  # the places of those that have a score
        self.best: int | None = None  # the place of the highest of these
        self._spark: list[float] = []
        self._spark_of = 0  # so many scores
        self.newest: dict[str, Any] = {}
        self.waits: deque[tuple[int, str, float]] = deque(maxlen=STRIP_ROUNDS)  # round, for whom, its seconds
        self.metric = ""
        self.is_encoded = True
        self.wire = 0.0  # bytes that a client has sent with all messages
        self.got = 0.0  # encoded bytes that a client has got
        self.control_sum: float | None = None
        self.unreadable = 0  # lines

    def refresh(self, beginnings: Sequence[float]) -> None:
        """Read what is new; `beginnings` are the times at which processes took the run up."""
        for news in self._file.readings():
            if news.anew:
                self._forget()
            for line in news.lines:
                self._add_line(line, beginnings)

    def _add_line(self, line: bytes, beginnings: Sequence[float]) -> None:
        record = json_object(line)
        if (number_of_round := count(record.get("round"))) is None:
            self.unreadable += 1
        elif number_of_round > self.last_round:
            self._add(number_of_round, record, beginnings)

    def _add(self, number_of_round: int, record: dict[str, Any], beginnings: Sequence[float]) -> None:
        clients = count(record.get("clients")) or 1
        seconds = max(0.0, number(record.get("seconds")) or 0.0)
        self.newest = record
        self.numbers.append(number_of_round)
        self.seconds.append(seconds)
        if waited_for := text(record.get("waited_for")):
            self.waits.append((number_of_round, waited_for, seconds))
        self._add_time(clock(record.get("time")), seconds, beginnings)
        payload = count(record.get("payload_bytes_up"))
        self.is_encoded = self.is_encoded and payload is not None
        self._sent[clients] += payload or 0
        self.payload.append(sum(whole / of for of, whole in self._sent.items()))
        self.values.append((number(record.get("paper_bits_up")) or 0.0) * BYTES_A_BIT)
        self.got += (count(record.get("payload_bytes_down")) or 0) / clients
        beside = table(record.get("traffic_beside_training")).values()
        self.wire += sum(count(table(one).get("message_bytes_up")) or 0 for one in (record, *beside)) / clients
        control_sum = number(record.get("control_sum_norm"))
        self.control_sum = self.control_sum if control_sum is None else control_sum
        self._add_score(table(record.get("metrics")))

    def _add_time(self, moment: float | None, seconds: float, beginnings: Sequence[float]) -> None:
        """Count the time since the last round; after a pause, and after clients have gathered, that of the round."""
        before = self.clocks[-1] if self.clocks else None
        moment = moment if moment is not None else (before or 0.0) + seconds
        was_there = before is not None and bisect_right(beginnings, before) == bisect_right(beginnings, moment)
        self.clocks.append(moment)
        self.elapsed.append(_last(self.elapsed) + (max(0.0, moment - before) if before and was_there else seconds))

    def _add_score(self, metrics: dict[str, Any]) -> None:
        if not self.metric:
            known = (name for name in metrics if name.startswith("test_") and number(metrics[name]) is not None)
            self.metric = text(min(known, default=""))
        score = number(metrics.get(self.metric))
        self.scores.append(NOT_EVALUATED if score is None else score)
        if score is not None:
            place = len(self.scores) - 1
            self.evaluated.append(place)
            self.best = place if self.best is None or score > self.scores[self.best] else self.best

    @property
    def last_round(self) -> int:
        """Return the number of the newest round."""
        return self.numbers[-1] if self.numbers else 0

    @property
    def started(self) -> float | None:
        """Return when the first round began, as far as the rounds tell."""
        started = self.clocks[0] - self.seconds[0] if self.clocks else 0.0
        return started if started > 0 else None

    @property
    def seconds_per_round(self) -> float | None:
        """Return how long a round takes of late, its evaluation included."""
        ends = self.elapsed[-RECENT - 1 :]
        spans = [end - start for start, end in itertools.pairwise(ends)]
        return median(spans) if spans else (self.seconds[-1] if self.seconds else None)

    def sent(self, kind: str) -> array[float]:
        """Return what a client has sent until each round, by one of the two counts."""
        return self.payload if kind == "payload" else self.values

    @property
    def sent_kind(self) -> str:
        """Return which count of bytes holds for all rounds."""
        return "payload" if self.is_encoded else "values"

    def spark(self) -> list[float]:
        """Return the scores in few numbers, for a line as small as a word."""
        if self._spark_of != len(self.evaluated):
            self._spark_of = len(self.evaluated)
            self._spark = few([self.scores[place] for place in self.evaluated], MOST_SPARKS)
        return self._spark

    def place_at(self, moment: float) -> int | None:
        """Return the place of the round that was going on at a time; None before there was any."""
        return min(bisect_left(self.clocks, moment), len(self.clocks) - 1) if self.clocks else None

    def missing(self) -> dict[str, str]:
        """Return why who was not counted in the newest round, as far as its line names them."""
        groups = table(self.newest.get("clients_missing"))
        return {
            name: text(why) for why, group in groups.items() for name in names(table(group).get("names"), MOST_NAMES)
        }


def _last(column: array[float]) -> float:
    return column[-1] if column else 0.0
