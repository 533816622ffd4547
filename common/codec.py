"""A vector <-> bytes: lossless, little-endian, checked when read.

    4 bytes         form: bit 0 set = only nonzero values are written, bit 1 set = values are bfloat16, else float32
    ceil(d/8) bytes only if bit 0: one bit a place, the first place in the lowest bit; set = nonzero; unused bits are 0
    the rest        the values, in order: all d of them, or those whose bit is set

[0, 0, -2.0, 0, 0, 0] in float32 is 01 00 00 00 | 04 | 00 00 00 c0. The size d is not written: the receiver knows it.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.types import Precision

_NONZEROS_ONLY = 1
_BFLOAT16 = 2
_FORM = struct.Struct("<I")


class DecodeError(ValueError):
    """Bytes that are no encoded vector of the expected size."""


def encode(vector: Tensor, precision: Precision = "float32") -> list[bytes | memoryview]:
    """Write a float32 vector, in the shorter of the two forms; for bfloat16 its values must be rounded already.

    The bytes come in parts, to be joined once, as some of them are the vector's own memory.
    """
    values: NDArray[Any] = vector.numpy(force=True)
    nonzero = values != 0
    form = 0
    width = 2 if precision == "bfloat16" else 4
    parts: list[bytes | memoryview] = []
    if (values.size + 7) // 8 + width * np.count_nonzero(nonzero) < width * values.size:
        form |= _NONZEROS_ONLY
        parts.append(np.packbits(nonzero, bitorder="little").tobytes())
        values = values[nonzero]
    if precision == "bfloat16":
        form |= _BFLOAT16
        values = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype("<u2")
    return [_FORM.pack(form), *parts, np.ascontiguousarray(values).data.cast("B")]


def decode(data: bytes | memoryview, size: int) -> Tensor:
    """Read a vector of the given size; refuse anything that `encode` could not have written, and what is not finite.

    Where the bytes are in memory that may be written, the vector may be a view of them.
    """
    view = memoryview(data)
    if len(view) < _FORM.size:
        raise DecodeError("too short to say in what form it is")
    (form,), rest = _FORM.unpack_from(view), view[_FORM.size :]
    if form > _NONZEROS_ONLY | _BFLOAT16:
        raise DecodeError("in an unknown form")
    places = None
    if form & _NONZEROS_ONLY:
        places, rest = _places(rest, size)
    count = size if places is None else int(np.count_nonzero(places))
    values = _values(rest, count, bfloat16=bool(form & _BFLOAT16))
    if not np.isfinite(values).all():
        raise DecodeError("values that are not finite")
    if places is not None:
        dense = np.zeros(size, np.float32)
        dense[places] = values
        values = dense
    return torch.from_numpy(values)


def _places(data: memoryview, size: int) -> tuple[NDArray[np.bool_], memoryview]:
    length = (size + 7) // 8
    if len(data) < length:
        raise DecodeError(f"{len(data)} bytes where {length} bytes of places were expected")
    bits = np.unpackbits(np.frombuffer(data[:length], np.uint8), bitorder="little")
    if bits[size:].any():
        raise DecodeError("places beyond the end")
    return bits[:size].view(np.bool_), data[length:]


def _values(data: memoryview, count: int, *, bfloat16: bool) -> NDArray[np.float32]:
    expected = count * (2 if bfloat16 else 4)
    if len(data) != expected:
        raise DecodeError(f"{len(data)} bytes of values where {expected} were expected")
    if bfloat16:
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    values = np.frombuffer(data, "<f4")
    return values if values.flags.writeable and values.flags.aligned else values.copy()
