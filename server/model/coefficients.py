"""What a linear model has learned, by the names of columns and in their units."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from torch import Tensor, nn

from common.learning.blueprint import Blueprint
from common.learning.linear import unscaled

MOST = 1000  # that are listed
INTERCEPT = "intercept"


@dataclass(frozen=True)
class Coefficient:
    """How much a column adds to the prediction, or to the score of a class, for each of its units."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """The weights of a linear model that are not zero, and its intercepts."""

    weights: int  # with those that are zero
    survivors: int  # that are not
    largest: tuple[Coefficient, ...]  # of the survivors, the largest first
    intercepts: tuple[Coefficient, ...]

    @classmethod
    def of(cls, blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> Coefficients | None:
        """Return those of a model; None where it is no linear one, or its columns have no names."""
        if not blueprint.features or not isinstance(blueprint.module, nn.Linear):
            return None
        blueprint.module.load_state_dict(tensors)
        plain = unscaled(blueprint.module)
        outputs = [f"{name}: " for name in blueprint.classes] or [""]
        weights, columns = plain["weight"].flatten(), len(blueprint.features)
        survivors = int(weights.count_nonzero())
        order = weights.abs().argsort(descending=True, stable=True)[: min(survivors, MOST)]
        return cls(
            weights=weights.numel(),
            survivors=survivors,
            largest=tuple(
                Coefficient(outputs[place // columns] + blueprint.features[place % columns], value)
                for place, value in zip(order.tolist(), weights[order].tolist(), strict=True)
            ),
            intercepts=tuple(
                Coefficient(output + INTERCEPT, value)
                for output, value in zip(outputs, plain["bias"].tolist(), strict=True)
            ),
        )

    def first(self, most: int) -> tuple[Coefficient, ...]:
        """Return the largest coefficients, and then the intercepts, so many of each."""
        return (*self.largest[:most], *self.intercepts[:most])

    def to_json(self) -> str:
        """Return a list of names and values."""
        return json.dumps([asdict(one) for one in self.first(MOST)])
