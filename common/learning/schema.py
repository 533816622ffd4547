"""What the columns of a table may hold, and the features that a linear model makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.learning.tables import Column
from common.ranges import LARGEST

Missing = Literal["refuse", "zero", "indicate"]  # a missing entry is 0 once it is scaled; with a feature that says so
Scaling = Literal["range", "largest"]  # LOW..HIGH to 0..1; or by the largest absolute value


@dataclass(frozen=True)
class Number:
    """A column of numbers within a range."""

    low: float
    high: float

    size = 1  # features that it makes

    def entries(self, column: Column) -> NDArray[np.float64]:
        """Return the numbers; NaN where one is missing."""
        numbers = column.numbers()
        outside = np.flatnonzero((numbers < self.low) | (numbers > self.high) | np.isinf(numbers))
        if outside.size:
            raise column.refuse(int(outside[0]), f"is beyond its range in the schema, {self.low:g}..{self.high:g}")
        return numbers

    def scale(self, scaling: Scaling) -> tuple[float, float]:
        """Return what becomes 0, and how much more than that becomes 1."""
        if scaling == "range":
            return self.low, (self.high - self.low) or 1.0
        return 0.0, max(abs(self.low), abs(self.high)) or 1.0


@dataclass(frozen=True)
class Category:
    """A column with one of some values."""

    values: tuple[str, ...]

    def entries(self, column: Column) -> NDArray[np.int64]:
        """Return the place of each entry among the values; -1 where it is missing.

        A value that the schema names is never missing, whatever it looks like.
        """
        matches = column.words()[:, None] == np.array(self.values)[None, :]
        unknown = np.flatnonzero(~matches.any(1) & ~column.is_blank())
        if unknown.size:
            raise column.refuse(int(unknown[0]), f"is none of its values in the schema, {' | '.join(self.values)}")
        return np.where(matches.any(1), matches.argmax(1), -1)

    @property
    def size(self) -> int:
        """Return how many features it makes."""
        return len(self.values)


def read_kind(name: str, text: str) -> Number | Category:
    """Read `LOW..HIGH` or `A | B | C`."""
    low, dots, high = text.partition("..")
    if dots:
        try:
            kind = Number(float(low), float(high))
        except ValueError:
            raise ValueError(f"columns.{name} = {text!r}: expected a range of numbers, such as 0..120") from None
        if not -LARGEST < kind.low <= kind.high < LARGEST:
            raise ValueError(f"columns.{name} = {text!r}: the lower end comes first, and both are below {LARGEST:g}")
        return kind
    values = tuple(value.strip() for value in text.split("|"))
    if len(values) < 2 or len(set(values)) < len(values) or not all(values):
        raise ValueError(f"columns.{name} = {text!r}: expected a range LOW..HIGH, or different values A | B | C")
    return Category(values)


def missing_entries(entries: Tensor) -> Tensor:
    """Say which entries of a column are missing: NaN among numbers, -1 among places of values."""
    return entries.isnan() if entries.is_floating_point() else entries < 0


class TableFeatures(nn.Module):
    """Makes features of columns: a number as it is, one for each value of a category, one for what is missing."""

    def __init__(self, kinds: Sequence[Number | Category], scaling: Scaling, missing: Missing) -> None:
        super().__init__()
        self._kinds = kinds
        self._scaling = scaling
        self._missing = missing

    def forward(self, *columns: Tensor) -> Tensor:
        """Return (rows, features), not scaled yet; what may not be missing and is, is NaN."""
        blocks = []
        for kind, entries in zip(self._kinds, columns, strict=True):
            missing = missing_entries(entries).unsqueeze(1)
            blocks.append(torch.where(missing, self._instead(kind), _spread(kind, entries)))
            if self._missing == "indicate":
                blocks.append(missing.double())
        return torch.cat(blocks, 1)

    def scale(self) -> tuple[Tensor, Tensor]:
        """Return what becomes 0 of each feature, and how much more than that becomes 1."""
        scales = []
        for kind in self._kinds:
            scales += [kind.scale(self._scaling)] if isinstance(kind, Number) else [(0.0, 1.0)] * kind.size
            scales += [(0.0, 1.0)] * (self._missing == "indicate")
        low, span = torch.tensor(scales, dtype=torch.float64).T
        return low.contiguous(), span.contiguous()

    def names(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return what each feature stands for."""
        names = []
        for name, kind in zip(columns, self._kinds, strict=True):
            names += [name] if isinstance(kind, Number) else [f"{name}={value}" for value in kind.values]
            names += [f"{name} is missing"] * (self._missing == "indicate")
        return tuple(names)

    def _instead(self, kind: Number | Category) -> float:
        """Return what stands for a missing entry: what becomes 0."""
        if self._missing == "refuse":
            return float("nan")
        return kind.scale(self._scaling)[0] if isinstance(kind, Number) else 0.0


def _spread(kind: Number | Category, entries: Tensor) -> Tensor:
    """Return a column's features, where nothing is missing."""
    rows = entries.unsqueeze(1)
    return rows if isinstance(kind, Number) else (rows == torch.arange(kind.size)).double()
