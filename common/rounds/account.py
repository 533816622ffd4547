"""What a round costs and brings, deployed or simulated: gathered as it happens, and in the end its record."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from common.rounds.records import BITS_A_VALUE, ClientRecord, Effort, RoundRecord, Traffic, by_reason, utc_now
from common.rounds.state import RoundPlan
from common.vectors.sparsity import density_of

Purpose = Literal["train", "evaluate", "audit", "recentre", "link"]


@dataclass
class Spent:
    """What was sent for one purpose, by client; a client that is in none of the counters had nothing to encode."""

    payload_up: Counter[str] = field(default_factory=Counter)
    payload_down: Counter[str] = field(default_factory=Counter)
    message_up: Counter[str] = field(default_factory=Counter)
    message_down: Counter[str] = field(default_factory=Counter)

    def add(self, other: Spent) -> None:
        """Count what was spent elsewhere too."""
        self.payload_up.update(other.payload_up)
        self.payload_down.update(other.payload_down)
        self.message_up.update(other.message_up)
        self.message_down.update(other.message_down)

    def traffic(self) -> Traffic:
        """Return the sums over all clients."""
        return Traffic(
            payload_bytes_up=self.payload_up.total() if self.payload_up else None,
            payload_bytes_down=self.payload_down.total() if self.payload_down else None,
            message_bytes_up=self.message_up.total() if self.message_up else None,
            message_bytes_down=self.message_down.total() if self.message_down else None,
        )


class RoundAccount:
    """One round, all attempts at it, from before its first message to its evaluation."""

    def __init__(self, plan: RoundPlan, model: Tensor, clients: int) -> None:
        self.plan = plan
        self._clients = clients
        self._size = model.shape[-1]
        self._density_down = density_of(model).item()
        self._spent: defaultdict[Purpose, Spent] = defaultdict(Spent)
        self._started = time.perf_counter()
        self._seconds = 0.0

    def spent_on(self, purpose: Purpose) -> Spent:
        """Return what was sent for a purpose so far, to be added to."""
        return self._spent[purpose]

    def take_over(self, left_out: RoundAccount) -> None:
        """Count what was spent on a round of which nothing came."""
        for purpose, spent in left_out._spent.items():
            self.spent_on(purpose).add(spent)

    def end_training(self) -> None:
        """Stop the clock: what follows is evaluation."""
        self._seconds = time.perf_counter() - self._started

    def record(
        self,
        *,
        bits_up_before: float,
        values: Mapping[str, int],
        model_values: int,
        control_sum_norm: float | None,
        metrics: dict[str, float],
        missing: Mapping[str, str] | None = None,
        efforts: Mapping[str, Effort] | None = None,
        waited_for: str = "",
    ) -> RoundRecord:
        """Return the round's record; `values` says who was counted, and how many values each had uploaded.

        `efforts` are those of the same clients where they are real: of simulated ones nothing is written down singly.
        """
        train, efforts = self.spent_on("train").traffic(), efforts or {}
        return RoundRecord(
            round=self.plan.round,
            time=utc_now(),
            local_steps=self.plan.local_steps,
            clients=self._clients,
            clients_counted=len(values),
            clients_missing=by_reason(missing or {}),
            paper_bits_up=bits_up_before + BITS_A_VALUE * sum(values.values()) / self._clients,
            density_up=model_values / (len(values) * self._size),
            density_down=self._density_down,
            control_sum_norm=control_sum_norm,
            seconds=self._seconds,
            waited_for=waited_for,
            seconds_by_phase=efforts[waited_for].seconds if waited_for else {},
            payload_bytes_up=train.payload_bytes_up,
            payload_bytes_down=train.payload_bytes_down,
            message_bytes_up=train.message_bytes_up,
            message_bytes_down=train.message_bytes_down,
            traffic_beside_training={
                purpose: spent.traffic() for purpose, spent in sorted(self._spent.items()) if purpose != "train"
            },
            by_client={name: self._client_record(name, values[name], effort) for name, effort in efforts.items()},
            metrics=metrics,
        )

    def _client_record(self, name: str, values: int, effort: Effort) -> ClientRecord:
        train = self.spent_on("train")
        return ClientRecord(
            paper_bits_up=BITS_A_VALUE * values,
            payload_bytes_up=train.payload_up.get(name),
            payload_bytes_down=train.payload_down.get(name),
            message_bytes_up=train.message_up.get(name),
            message_bytes_down=train.message_down.get(name),
            memory_mb=effort.peak.memory_mb,
            vram_mb=effort.peak.vram_mb,
            seconds=effort.seconds,
        )
