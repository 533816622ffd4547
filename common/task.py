"""What a task is: data that stays with its clients, a loss on each, and metrics on a test set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from common.data import DataFolder
from common.types import ServerState


class Objective(ABC):
    """The private loss f_i of one client, over vectors (d,), or of N clients as one batch, over tensors (N, d).

    A batch takes several points of each client too, as (N * points, d), those of one client side by side.
    """

    @abstractmethod
    def start_round(self, round_number: int, buffers: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return the round's gradient function; its batches depend on (seed, client, round) alone.

        The gradient that it returns belongs to the caller until the next call, and may be overwritten.
        """

    @abstractmethod
    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        """Return f_i(w): one number, or N."""

    def buffers(self) -> Tensor | None:
        """Return the BatchNorm statistics as the round left them."""
        return None


class Problem(ABC):
    """A task with its data at hand; states are on the CPU, objectives on the device."""

    data_name: str  # what the data really is, for reports
    metric: ClassVar[str]  # the headline among the metrics
    batched: ClassVar[bool]  # one objective can hold many clients at once
    clients: int

    @abstractmethod
    def initial_state(self) -> ServerState:
        """Return the model that the first round starts from."""

    @abstractmethod
    def objective(self, clients: Sequence[int]) -> Objective:
        """Return the loss of one client, or of several as one batch where the problem is `batched`."""

    @abstractmethod
    def evaluate(self, state: ServerState) -> dict[str, float]:
        """Return the metrics of a model on held-out data."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """The section `task` of an experiment: its options are the fields."""

    plugin_package: ClassVar[str] = "common.tasks"

    @abstractmethod
    def load(self, data: DataFolder, *, clients: int, seed: int, device: torch.device) -> Problem:
        """Read the data and deal it out to the clients."""
