"""Values <-> bytes: as they are, or their upper bytes apart and Huffman-coded. The layout is in codec.py.

Signs and exponents of a model's weights take few different values, the lower halves of mantissas look random.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.bytestream import DecodeError, Reader, inflate, memory_of

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


def split(values: Values, width: int) -> tuple[int, list[bytes | memoryview]]:
    """Return which planes are worth to be Huffman-coded, and the planes; if none is, the values whole."""
    whole: NDArray[Any] = values if width == 4 else (values.view(np.uint32) >> 16).astype(np.uint16)
    columns = whole.view(np.uint8).reshape(-1, width)
    worth_it = TOP * _is_worth_it(columns[:, -1]) | SECOND * _is_worth_it(columns[:, -2])
    if not worth_it:
        return worth_it, [memory_of(whole)]
    planes = [columns[:, -1], columns[:, -2]] + ([whole.view(np.uint16)[::2]] if width == 4 else [])
    return worth_it, [memory_of(np.ascontiguousarray(plane)) for plane in planes]


def read_values(reader: Reader, lengths: dict[int, int], count: int, width: int) -> Values:
    """Read as many finite values; `lengths` are those of the planes that are coded."""
    if not lengths:
        values = _from_whole(reader.take(count * width, "values"), width)
    else:
        top, second = (_plane(reader, lengths.get(flag), count) for flag in PLANES)
        values = np.empty(count, np.float32)
        columns = values.view(np.uint8).reshape(-1, 4)
        columns[:, 3], columns[:, 2] = top, second
        low = np.frombuffer(reader.take(2 * count, "low halves"), np.uint16) if width == 4 else 0
        values.view(np.uint16)[::2] = low
    if not np.isfinite(values).all():
        raise DecodeError("values that are not finite")
    return values


def _is_worth_it(plane: NDArray[np.uint8]) -> bool:
    if plane.size < SHORTEST:
        return False
    counts = np.bincount(plane[:: -(-plane.size // SAMPLE)])
    shares = counts[counts > 0] / counts.sum()
    return bool(-(shares * np.log2(shares)).sum() < MOST_BITS_A_BYTE)


def _plane(reader: Reader, length: int | None, count: int) -> NDArray[np.uint8]:
    if length is None:
        return np.frombuffer(reader.take(count, "a plane"), np.uint8)
    plain = inflate(reader.take(length, "a plane"), count, "a plane")
    if len(plain) != count:
        raise DecodeError(f"a plane of {len(plain)} bytes for {count} values")
    return np.frombuffer(plain, np.uint8)


def _from_whole(data: memoryview, width: int) -> Values:
    if width == 2:
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    values = np.frombuffer(data, np.float32)
    return values if values.flags.writeable and values.flags.aligned else values.copy()
