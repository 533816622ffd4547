"""Values <-> bytes: as they are, or their upper bytes apart and Huffman-coded. The layout is in vector.py.

Signs and exponents of a model's weights take few different values, the lower halves of mantissas look random.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.codec.bytestream import Inflater, Reader
from common.errors import DecodeError
from common.vectors.entries import BLOCK

PLANES = TOP, SECOND = 1, 2
CODED_SHARE = 0.79  # of the bytes of many values, about
# A plane is coded if it is worth a table, and by a sample of it not nearly random.
SHORTEST = 512
SAMPLE = 1 << 14
MOST_BITS_A_BYTE = 7.8

Values = NDArray[np.float32]


def estimated_bytes(count: int, width: int) -> float:
    """Return about how many bytes that many values of 4 or 2 bytes take."""
    return count * width * (CODED_SHARE if count >= SHORTEST else 1)


def split(values: Values, width: int) -> tuple[int, list[NDArray[Any]]]:
    """Return which planes are worth to be Huffman-coded, and the planes; if none is, the values whole."""
    columns, halves = values.view(np.uint8), values.view(np.uint16)
    top, second = columns[3::4], columns[2::4]
    worth_it = TOP * is_worth_it(top) | SECOND * is_worth_it(second)
    if not worth_it:
        return worth_it, [values if width == 4 else halves[1::2]]
    return worth_it, [top, second] + ([halves[::2]] if width == 4 else [])


def read_blocks(reader: Reader, lengths: dict[int, int], count: int, width: int) -> Iterator[Values]:
    """Return as many finite values, in blocks; `lengths` are those of the planes that are coded.

    Where they are is found at once, what they are when it is asked for.
    """
    return _finite(Planes(reader, lengths, count, width) if lengths else Whole(reader, count, width), count)


class Whole:
    """Values one after the other."""

    def __init__(self, reader: Reader, count: int, width: int) -> None:
        self._section = reader.section(count * width, "values")
        self._width = width

    def take(self, count: int) -> Values:
        """Return the next values."""
        data = self._section.take(count * self._width, "values")
        if self._width == 4:
            return np.frombuffer(data, np.float32)
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)

    def end(self) -> None:
        """Do nothing: the section is as long as its values."""


class Planes:
    """Values by their bytes: the top ones, the second ones, the two lower ones."""

    def __init__(self, reader: Reader, lengths: dict[int, int], count: int, width: int) -> None:
        self._count = count
        self._upper = [_plane(reader, lengths.get(flag), count) for flag in PLANES]
        self._lower = reader.section(2 * count, "low halves") if width == 4 else None

    def take(self, count: int) -> Values:
        """Return the next values."""
        values = np.empty(count, np.float32)
        columns, halves = values.view(np.uint8), values.view(np.uint16)
        for place, plane in zip((3, 2), self._upper, strict=True):
            data = plane.take(count, "a plane")
            if len(data) != count:
                raise DecodeError(f"a plane of fewer bytes than the {self._count} values")
            columns[place::4] = np.frombuffer(data, np.uint8)
        halves[::2] = np.frombuffer(self._lower.take(2 * count, "low halves"), np.uint16) if self._lower else 0
        return values

    def end(self) -> None:
        """Refuse planes that go on."""
        for plane in self._upper:
            if isinstance(plane, Inflater):
                plane.end(self._count, "a plane")


def _finite(source: Whole | Planes, count: int) -> Iterator[Values]:
    for start in range(0, count, BLOCK):
        values = source.take(min(BLOCK, count - start))
        if not np.isfinite(values).all():
            raise DecodeError("values that are not finite")
        yield values
    source.end()


def _plane(reader: Reader, length: int | None, count: int) -> Reader | Inflater:
    section = reader.section(count if length is None else length, "a plane")
    return section if length is None else Inflater(section)


def is_worth_it(plane: NDArray[np.uint8]) -> bool:
    """Say whether a plane is to be Huffman-coded."""
    if plane.size < SHORTEST:
        return False
    counts = np.bincount(plane[:: -(-plane.size // SAMPLE)])
    shares = counts[counts > 0] / counts.sum()
    return bool(-(shares * np.log2(shares)).sum() < MOST_BITS_A_BYTE)
