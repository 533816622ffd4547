"""Who hears of a run while it goes on: of its rounds, of its re-centrings, and of what an operator should know."""

from __future__ import annotations

from common.rounds.ledger import Checkpoint
from common.rounds.records import RoundRecord
from common.say import one_line


class Listener:
    """Prints what is said, and does nothing else; what keeps the checkpoints lets a new strategy go on from them."""

    def on_round(self, record: RoundRecord, checkpoint: Checkpoint) -> None:
        """Hear of a round that is done, before anything of the next one is sent."""

    def on_recentring(self, checkpoint: Checkpoint) -> None:
        """Hear that the ledger has changed between two rounds, before any client is told."""

    def say(self, text: str) -> None:
        """Hear what an operator should know."""
        print(one_line(text), flush=True)  # noqa: T201 - where nobody else listens
