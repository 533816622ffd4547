"""What a model is to those who use it: a torch module, what goes into it, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Input:
    """One of the tensors that a model is given, with an example in each row."""

    name: str
    example: Tensor  # two rows
    values: tuple[str, ...] = ()  # of a category: the tensor holds their places here, -1 where the entry is missing


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A model without its numbers."""

    module: nn.Module  # untrained; its state_dict names the tensors of a saved model
    inputs: tuple[Input, ...]
    scaling: str  # what is done to inputs before the module, in words
    preparation: nn.Module = field(default_factory=nn.Identity)  # the same as a module: from inputs to its argument
    classes: tuple[str, ...] = ()  # what the outputs stand for; none where the one output is a number
    features: tuple[str, ...] = ()  # what the columns of a linear module's weight stand for, where they have names


class Predictor(nn.Module):
    """A model from raw inputs to a number for each example, or to the probability of each class."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__()
        self.preparation = blueprint.preparation
        self.module = blueprint.module
        self.is_classifier = bool(blueprint.classes)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return (examples,) numbers, or (examples, classes) probabilities."""
        outputs: Tensor = self.module(self.preparation(*inputs))
        return torch.softmax(outputs, 1) if self.is_classifier else outputs.squeeze(1)
