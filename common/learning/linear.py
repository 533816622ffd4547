"""A linear model as a torch module: how the flat vector of a convex task is named."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SCALING = "(x - low) / span, by the tensors of that name"


class ScaledLinear(nn.Linear):
    """A linear layer over features that it scales first; in double precision, as such models are measured."""

    low: Tensor
    span: Tensor

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__(features, outputs)
        self.register_buffer("low", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("span", torch.ones(features, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores of unscaled features."""
        scaled = (features - self.low) / self.span
        return nn.functional.linear(scaled, self.weight.double(), self.bias.double())


def linear_tensors(vector: Tensor, outputs: int) -> dict[str, Tensor]:
    """Return weight and bias of a flattened (outputs, features + 1) matrix, whose last feature is a constant 1."""
    matrix = vector.reshape(outputs, -1)
    return {"weight": matrix[:, :-1], "bias": matrix[:, -1]}


def unscaled(module: nn.Linear) -> dict[str, Tensor]:
    """Return weight and bias of the plain layer that gives the same scores without scaling its features."""
    weight, bias = module.weight.detach(), module.bias.detach()
    if not isinstance(module, ScaledLinear):
        return {"weight": weight, "bias": bias}
    by_unit = weight.double() / module.span
    return {"weight": by_unit, "bias": bias.double() - by_unit @ module.low}
