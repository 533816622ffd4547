"""The loss of a client, as an algorithm sees it: a gradient at a flat vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor


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
