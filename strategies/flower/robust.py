"""A round whose uploads are all kept until the last is here: those that are unlike the others are not counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.errors import DecodeError
from common.messages.messages import Report
from common.rounds.outliers import Change
from common.rounds.robust import left_out, most_left_out
from common.rounds.state import ReceivedUpload
from strategies.flower.tally import Tally

Held = tuple[Report[ReceivedUpload], Change, Mapping[str, float]]


@dataclass
class RobustTally(Tally):
    """Counts at the end of a round, and then leaves whole clients out."""

    liars: int = 0  # that may be among those who were not refused
    least: int = 1  # clients that are to be counted in any case
    held: dict[str, Held] = field(default_factory=dict)

    def add(self, report: Report[ReceivedUpload], change: Change, link_seconds: Mapping[str, float]) -> None:
        """Keep an upload until all are here; what cannot be read to its end is refused now."""
        for _ in report.upload.model.blocks():
            pass
        self.held.setdefault(report.client, (report, change, link_seconds))

    def close(self) -> None:
        """Count those that are like each other; of who was refused nobody has to be left out any more."""
        models = {name: report.upload.model for name, (report, _, _) in sorted(self.held.items())}
        most = min(most_left_out(len(models)), len(models) - self.least)
        if most > 0:
            self.left_out = {
                name: f"its model is {why}"
                for name, why in left_out(models, self.liars - len(self.refused), most).items()
            }
        held, self.held = self.held, {}
        for name in [name for name in held if name not in self.left_out]:
            self._count(name, held.pop(name))

    def _count(self, name: str, held: Held) -> None:
        try:
            super().add(*held)
        except DecodeError as error:
            self.refused[name] = str(error)
