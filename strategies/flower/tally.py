"""What the answers to a round's orders bring: uploads added as they come, and reasons why others were not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.messages.messages import Report
from common.rounds.mean import RunningMean
from common.rounds.records import PeakMemory
from common.rounds.state import ReceivedUpload


@dataclass
class Tally:
    """Who was counted, and who was not and why."""

    mean: RunningMean = field(default_factory=RunningMean)
    values: dict[str, int] = field(default_factory=dict)  # name of who was counted: values as the paper counts them
    refused: dict[str, str] = field(default_factory=dict)  # name: why; it would not help to ask again
    absent: dict[str, str] = field(default_factory=dict)  # name: why; it may be back later
    peaks: dict[str, PeakMemory] = field(default_factory=dict)
    longest_training_seconds: float = 0.0

    def add(self, report: Report[ReceivedUpload]) -> None:
        """Count one upload, unless its client was counted already."""
        if report.client not in self.values:
            self.values[report.client] = self.mean.add(report.upload)
            self.peaks[report.client] = report.peak
            self.longest_training_seconds = max(self.longest_training_seconds, report.seconds.get("train", 0.0))

    def missing(self, given_up: dict[str, str], members: Iterable[str], here: Iterable[str]) -> dict[str, str]:
        """Return why clients were not counted, the best reason that is known of each."""
        reasons = {
            **given_up,
            **dict.fromkeys(members, "it has left"),
            **dict.fromkeys(here, "no answer before the deadline"),
            **self.absent,
            **self.refused,
        }
        return {name: why for name, why in reasons.items() if name and name not in self.values}


def listed(reasons: Mapping[str, str]) -> str:
    """Return why clients were not counted, in one line."""
    return "; ".join(f"{name}: {why}" for name, why in reasons.items())
