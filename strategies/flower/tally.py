"""What the answers to a round's orders bring: uploads added as they come, and reasons why others were not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.messages.messages import Report
from common.rounds.mean import RunningMean
from common.rounds.records import PHASES, Effort
from common.rounds.state import ReceivedUpload


@dataclass
class Tally:
    """Who was counted, and who was not and why."""

    mean: RunningMean = field(default_factory=RunningMean)
    values: dict[str, int] = field(default_factory=dict)  # name of who was counted: values as the paper counts them
    digests: dict[str, int] = field(default_factory=dict)  # of their uploads
    refused: dict[str, str] = field(default_factory=dict)  # name: why; it would not help to ask again
    absent: dict[str, str] = field(default_factory=dict)  # name: why; it may be back later
    efforts: dict[str, Effort] = field(default_factory=dict)  # of those who were counted

    def add(self, report: Report[ReceivedUpload], link_seconds: Mapping[str, float]) -> None:
        """Count one upload, unless its client was counted already; the link may know what its way took."""
        if report.client not in self.values:
            self.values[report.client] = self.mean.add(report.upload)
            self.digests[report.client] = report.upload.digest
            seconds = {**report.seconds, **link_seconds}
            in_order = {phase: seconds[phase] for phase in PHASES if phase in seconds}
            self.efforts[report.client] = Effort(report.peak, in_order)

    @property
    def waited_for(self) -> str:
        """Return who was counted last."""
        return next(reversed(self.values), "")

    @property
    def longest_training_seconds(self) -> float:
        """Return how long the slowest of those counted has trained."""
        return max((effort.seconds.get("train", 0.0) for effort in self.efforts.values()), default=0.0)

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
