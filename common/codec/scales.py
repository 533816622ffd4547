"""Values <-> whole numbers: near values have near numbers, and zero is 0. The layout is in vector.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from common.errors import DecodeError
from common.rounds.rounding import LARGEST_ON_GRID
from common.rounds.state import RoundPlan

Values = NDArray[np.float32]
Numbers = NDArray[np.int64]

MOST_BESIDE = 127  # places in the order of float32
_MOST_UNITS = 2**24
_SIGN, _INFINITE = 0x80000000, 0x7F800000
_LOWER_HALF = 16  # bits of a float32 that bfloat16 does not have


class Scale(ABC):
    """What a whole number stands for."""

    code: ClassVar[int]  # in the form of a vector
    most_few: ClassVar[int] = 256  # numbers that go by a range coder: a server reads those of many clients

    @abstractmethod
    def exact(self, values: Values) -> Numbers | None:
        """Return the numbers of values; None where one of them has none."""

    @abstractmethod
    def near(self, values: Values) -> Numbers:
        """Return the numbers of the nearest values that have one, or nearly so."""

    def beside(self, values: Values) -> Numbers | None:
        """Return how far values are beside what their numbers stand for; None where they are just that."""
        return None

    @abstractmethod
    def values(self, numbers: Numbers, beside: Numbers | None = None) -> Values:
        """Return what numbers stand for, or what is so far beside it; refuse those that stand for nothing."""


class Float32(Scale):
    """All float32, in their order: the number of one is its bits, of a negative one -1 less its other bits."""

    code = 0

    def exact(self, values: Values) -> Numbers:
        """Return their order."""
        bits = values.view(np.uint32).astype(np.int64)
        return np.where(bits >= _SIGN, _SIGN - 1 - bits, bits)

    def near(self, values: Values) -> Numbers:
        """Return the same."""
        return self.exact(values)

    def values(self, numbers: Numbers, beside: Numbers | None = None) -> Values:
        """Refuse what is not finite."""
        negative = numbers < 0
        magnitudes = np.where(negative, -1 - numbers, numbers)
        if (magnitudes >= _INFINITE).any():
            raise DecodeError("values that are not finite")
        return np.where(negative, magnitudes | _SIGN, magnitudes).astype(np.uint32).view(np.float32)


class BFloat16(Scale):
    """All bfloat16, in the same way."""

    code = 1

    def exact(self, values: Values) -> Numbers | None:
        """Return their order, if they are rounded."""
        return None if values.view(np.uint16)[::2].any() else self.near(values)

    def near(self, values: Values) -> Numbers:
        """Round to the nearest, halves away from zero."""
        bits = values.view(np.uint32).astype(np.int64)
        rounded = (bits & ~_SIGN) + (1 << (_LOWER_HALF - 1)) >> _LOWER_HALF
        return np.where(bits >= _SIGN, -1 - rounded, rounded)

    def values(self, numbers: Numbers, beside: Numbers | None = None) -> Values:
        """Refuse what is not finite."""
        negative = numbers < 0
        magnitudes = np.where(negative, -1 - numbers, numbers) << _LOWER_HALF
        return FLOAT32.values(np.where(negative, -1 - magnitudes, magnitudes))


@dataclass(frozen=True)
class Grid(Scale):
    """Whole multiples of a step, which is a power of two."""

    step: float

    code = 2

    def exact(self, values: Values) -> Numbers | None:
        """Return how many steps they are; -0.0 is none."""
        numbers = self.near(values)
        return numbers if (self.values(numbers).view(np.uint32) == values.view(np.uint32)).all() else None

    def near(self, values: Values) -> Numbers:
        """Round to the nearest; beyond the end there is the last one."""
        steps = np.clip(values.astype(np.float64) / self.step, -LARGEST_ON_GRID, LARGEST_ON_GRID)
        return np.rint(steps).astype(np.int64)

    def values(self, numbers: Numbers, beside: Numbers | None = None) -> Values:
        """Refuse what is beyond the end."""
        if (np.abs(numbers) > LARGEST_ON_GRID).any():
            raise DecodeError("values beyond the end of the grid")
        return (numbers * self.step).astype(np.float32)


@dataclass(frozen=True)
class Units(Scale):
    """Whole multiples of a unit, as means of vectors on a grid are: the nearest float32 to one, or one beside it."""

    unit: float

    code = 3
    most_few = 2048  # they are written once for all clients, and each reads its own

    def exact(self, values: Values) -> Numbers | None:
        """Return the nearest multiples, if none is zero and no value far beside."""
        multiples = self.near(values)
        fits = multiples.all() and (np.abs(self.beside(values)) <= MOST_BESIDE).all()
        return multiples if fits else None

    def near(self, values: Values) -> Numbers:
        """Return the nearest multiples."""
        with np.errstate(over="ignore"):  # a unit may be as small as a peer likes
            units = values.astype(np.float64) / self.unit
        return np.rint(np.clip(units, -_MOST_UNITS, _MOST_UNITS)).astype(np.int64)

    def beside(self, values: Values) -> Numbers:
        """Return how far values are beside the nearest multiple, in the order of float32."""
        return FLOAT32.exact(values) - self._order(self.near(values))

    def values(self, numbers: Numbers, beside: Numbers | None = None) -> Values:
        """Refuse what is beyond the end."""
        if (np.abs(numbers) > _MOST_UNITS).any():
            raise DecodeError("values beyond the largest of units")
        if beside is not None and (np.abs(beside) > MOST_BESIDE).any():
            raise DecodeError("values far beside their units")
        return FLOAT32.values(self._order(numbers) + (0 if beside is None else beside))

    def _order(self, multiples: Numbers) -> Numbers:
        with np.errstate(over="ignore"):  # what is infinite is refused, or far beside
            return FLOAT32.exact((multiples * self.unit).astype(np.float32))


FLOAT32, BFLOAT16 = Float32(), BFloat16()


def scale_of(plan: RoundPlan) -> Scale:
    """Return what a round's uploads are written on."""
    match plan.precision:
        case "float32":
            return FLOAT32
        case "bfloat16":
            return BFLOAT16
        case "grid":
            return Grid(plan.step)
