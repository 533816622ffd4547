"""The loss of a client, as an algorithm sees it: a gradient at a flat vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

from torch import Tensor


class Gradient(ABC):
    """The gradient of one round's loss."""

    point: Tensor | None = None  # where a network reads its weights: what is written there needs no copy

    @abstractmethod
    def __call__(self, weights: Tensor) -> Tensor:
        """Return the gradient at w, or at `point`, which is taken as it is.

        What is returned belongs to the caller until the next call, and may be overwritten.
        """

    def undecayed(self, weights: Tensor, norm_at_most: float) -> tuple[Tensor, float]:
        """Return a gradient, and how much of w the caller has to add to it, in a pass that reads w anyway."""
        return self(weights), 0.0

    def buffers(self) -> Tensor | None:
        """Return the BatchNorm statistics as the round has left them."""
        return None


class FullGradient(Gradient):
    """A gradient over all data: the same in every round."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function

    def __call__(self, weights: Tensor) -> Tensor:
        """Return the gradient at w."""
        return self._function(weights)


class Objective(ABC):
    """The private loss f_i of one client, over vectors (d,), or of N clients as one batch, over tensors (N, d).

    A batch takes several points of each client too, as (N * points, d), those of one client side by side.
    """

    @abstractmethod
    def round(self, number: int, buffers: Tensor | None) -> AbstractContextManager[Gradient]:
        """Begin a round; its batches depend on (seed, client, round) alone.

        A network is this round's alone until the context ends: clients of one process are threads that take turns.
        """

    @abstractmethod
    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        """Return f_i(w): one number, or N."""
