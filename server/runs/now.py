"""What a run and its clients are at in this moment: values to read, for the terminal and for status.json."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["starting", "gathering", "training", "evaluating", "recentring", "finished", "stopped", "failed"]
Doing = Literal["downloading", "training", "uploading", "answered", "idle", "away", "put out"]

AT_WORK: tuple[Doing, ...] = ("downloading", "training", "uploading")
TROUBLE_FIRST: tuple[Doing, ...] = ("away", "put out", "downloading", "training", "uploading", "idle", "answered")
WORTH_A_WORD_SECONDS = 3.0  # for which the rest of a round was waited for
MOST_NAMES = 3  # in a sentence


@dataclass(frozen=True, slots=True)
class ClientNow:
    """What one client is doing."""

    doing: Doing
    since: float | None = None  # by time.time(); None: nobody knows
    done: int = 0  # steps when it trains, else bytes
    of: int = 0  # 0: not known yet
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class RunNow:
    """What a run is at."""

    state: State
    round: int  # that is under way, or the next
    round_started: float | None = None  # by time.time()
    deadline_seconds: float | None = None
    needed: int = 0  # clients
    counted: int = 0  # in the round under way
    clients: Mapping[str, ClientNow] = field(default_factory=dict)  # by name; none in a simulation
    gathering: str = ""  # how many are here, where some are waited for before a round

    @property
    def waiting_for(self) -> list[str]:
        """Return whose answers are still to come."""
        return [name for name, client in self.clients.items() if client.doing in (*AT_WORK, "away")]

    @property
    def by_state(self) -> dict[Doing, int]:
        """Return how many clients do what, trouble first."""
        counts = Counter(client.doing for client in self.clients.values())
        return {doing: counts[doing] for doing in TROUBLE_FIRST if counts[doing]}

    @property
    def text(self) -> str:
        """Say in a sentence for what the run waits; nothing where it does not."""
        if self.gathering:
            return self.gathering
        seconds = time.time() - self.round_started if self.round_started else 0.0
        names = self.waiting_for
        if self.state != "training" or not names or not self.counted or seconds < WORTH_A_WORD_SECONDS:
            return ""
        who = ", ".join(names) if len(names) <= MOST_NAMES else f"{len(names)} clients"
        return f"round {self.round} waits for {who}, {seconds:.0f} s after its start"


Now = Callable[[], RunNow]
