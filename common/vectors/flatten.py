"""A torch module as one flat vector of parameters, and its floating-point buffers as another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in a flat vector."""

    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Tensor]]) -> Layout:
        """Return the layout of these named tensors, in their order."""
        return cls({name: tensor.shape for name, tensor in tensors})

    @property
    def size(self) -> int:
        """Return d, the length of the flat vector."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Join named tensors into one vector; leading dimensions beyond their shapes are a batch."""
        parts = [
            tensors[name].flatten(-len(shape)) if len(shape) else tensors[name].unsqueeze(-1)
            for name, shape in self.shapes.items()
        ]
        return torch.cat(parts, dim=-1)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Cut a vector into named views of itself; leading dimensions are a batch."""
        if vector.shape[-1] != self.size:
            raise ValueError(f"expected a vector of {self.size} numbers, got {vector.shape[-1]}")
        parts = torch.split(vector, [math.prod(shape) for shape in self.shapes.values()], dim=-1)
        return {
            name: part.view(*part.shape[:-1], *shape)
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }
