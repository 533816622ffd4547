"""What the answers to a round's orders bring: uploads added as they come, and reasons why others were not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from common.messages.messages import Report
from common.rounds.mean import RunningMean
from common.rounds.outliers import Change, outliers
from common.rounds.records import MOST_NAMES, PHASES, Effort
from common.rounds.state import ReceivedUpload, ServerState


@dataclass
class Tally:
    """Who was counted, and who was not and why."""

    mean: RunningMean = field(default_factory=RunningMean)
    values: dict[str, int] = field(default_factory=dict)  # name of who was counted: values as the paper counts them
    checksums: dict[str, int] = field(default_factory=dict)  # of their uploads
    refused: dict[str, str] = field(default_factory=dict)  # name: why; it would not help to ask again
    left_out: dict[str, str] = field(default_factory=dict)  # name: why; its upload is well-formed, but unlike others
    absent: dict[str, str] = field(default_factory=dict)  # name: why; it may be back later
    efforts: dict[str, Effort] = field(default_factory=dict)  # of those who were counted
    changes: dict[str, dict[str, float]] = field(default_factory=dict)  # vector: name: how far from what was sent

    def add(self, report: Report[ReceivedUpload], change: Change, link_seconds: Mapping[str, float]) -> None:
        """Count one upload, unless its client was counted already; the link may know what its way took."""
        if report.client not in self.values:
            self.values[report.client] = self.mean.add(report.upload, change)
            for vector, norm in change.norms().items():
                self.changes.setdefault(vector, {})[report.client] = norm
            self.checksums[report.client] = report.upload.checksum
            seconds = {**report.seconds, **link_seconds}
            in_order = {phase: seconds[phase] for phase in PHASES if phase in seconds}
            self.efforts[report.client] = Effort(report.peak, in_order)

    def close(self) -> None:
        """Note that no more will come."""

    def beyond_measure(self, sent: ServerState) -> dict[str, str]:
        """Return whose upload spoils the mean, and why; a change that is not larger than what was sent cannot."""
        spoilers: dict[str, str] = {}
        for vector, norms in self.changes.items():
            if outliers(norms):  # only then what was sent is read once more
                what = vector.removesuffix("_change")
                found = outliers(norms, harmless=float(getattr(sent, what).norm()))
                spoilers |= {name: f"sent a change of the {what} of norm {norm}" for name, norm in found.items()}
        return spoilers

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
            **self.left_out,
            **self.refused,
        }
        return {name: why for name, why in reasons.items() if name and name not in self.values}


def listed(reasons: Mapping[str, str]) -> str:
    """Return why the first of some clients were not counted, in one line."""
    named = "; ".join(f"{name}: {why}" for name, why in islice(reasons.items(), MOST_NAMES))
    return named if len(reasons) <= MOST_NAMES else f"{named}; and {len(reasons) - MOST_NAMES} more"
