"""What a linear model has learned, by the names of columns and in their units."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from torch import Tensor, nn

from common.learning.blueprint import Blueprint
from common.learning.linear import unscaled

MOST = 1000  # that are written down
INTERCEPT = "intercept"


@dataclass(frozen=True)
class Coefficient:
    """How much a column adds to the prediction, or to the score of a class, for each of its units."""

    name: str
    value: float


@dataclass(frozen=True)
class Coefficients:
    """The weights that are not zero, the largest first, and then the intercepts."""

    survivors: tuple[Coefficient, ...]
    intercepts: tuple[Coefficient, ...]
    weights: int  # with those that are zero

    @classmethod
    def of(cls, blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> Coefficients | None:
        """Return those of a model; None where it is no linear one, or its columns have no names."""
        if not blueprint.features or not isinstance(blueprint.module, nn.Linear):
            return None
        blueprint.module.load_state_dict(tensors)
        plain = unscaled(blueprint.module)
        outputs = [f"{name}: " for name in blueprint.classes] or [""]
        places = plain["weight"].nonzero().tolist()
        survivors = [
            Coefficient(outputs[row] + blueprint.features[column], float(plain["weight"][row, column]))
            for row, column in places
        ]
        return cls(
            survivors=tuple(sorted(survivors, key=lambda one: -abs(one.value))),
            intercepts=tuple(
                Coefficient(output + INTERCEPT, float(value))
                for output, value in zip(outputs, plain["bias"], strict=True)
            ),
            weights=plain["weight"].numel(),
        )

    @property
    def shown(self) -> tuple[Coefficient, ...]:
        """Return all of them, intercepts last; of very many weights the largest."""
        return (*self.survivors[:MOST], *self.intercepts[:MOST])

    def to_json(self) -> str:
        """Return a list of names and values."""
        return json.dumps([asdict(one) for one in self.shown])
