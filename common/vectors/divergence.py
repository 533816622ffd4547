"""Refuse a model that has left the finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from common.errors import DivergedError


def refuse_divergence(round_number: int, model: Tensor, numbers: Iterable[float]) -> None:
    """Stop where the model, or what is recorded of it, is no longer finite."""
    extremes = (one.item() for one in torch.aminmax(model))  # not a number if one is not; no mask of a large model
    for what, values in (("the model", extremes), ("the loss or another figure", numbers)):
        if not all(map(math.isfinite, values)):
            raise DivergedError(
                f"round {round_number}: {what} is no longer finite; try a smaller algorithm.learning_rate"
            )


def refuse_infinite(*, finite: bool) -> None:
    """Stop where weights are to be pruned or added that are not finite."""
    if not finite:
        raise DivergedError("the weights are no longer finite; try a smaller algorithm.learning_rate")
