"""The vectors of one message <-> bytes: what goes down to a client, what comes up from it.

Four varints give the lengths of four encoded vectors (codec.py), which follow in this order: the model, the control of
Scaffold, the BatchNorm statistics, and the average of an older round for a client that missed some. Length 0 means
that there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from common.bytestream import DecodeError, Reader, varint
from common.codec import decode_entries, encode_in_parts
from common.types import Entries, Precision, ReceivedUpload, ServerState, Upload

VECTORS = ("model", "control", "buffers", "average")


def pack_state(state: ServerState, average: Tensor | None = None) -> bytes:
    """Write what the server sends down: losslessly, as an average must not be changed on the way."""
    return _pack((state.model, state.control, state.buffers, average), "float32")


def unpack_state(data: bytes | memoryview, like: ServerState) -> tuple[ServerState, Tensor | None]:
    """Read a state and the average of an older round, if there is one; `like` gives the sizes."""
    model, control, buffers, average = _unpack(data, like)
    assert model is not None
    state = ServerState(model=model.dense(), control=_dense(control), buffers=_dense(buffers))
    return state, _dense(average)


def pack_upload(upload: Upload, precision: Precision) -> bytes:
    """Write what a client sends up; only the model is rounded to the upload's precision."""
    return _pack((upload.model, upload.control_change, upload.buffers, None), precision)


def unpack_upload(data: bytes | memoryview, like: ServerState, most_values: int | None = None) -> ReceivedUpload:
    """Read an upload by its entries; `like` gives the sizes, and the model may have so many values at most."""
    model, control, buffers, _ = _unpack(data, like, most_values)
    assert model is not None
    return ReceivedUpload(model=model, control_change=control, buffers=buffers)


def largest_bytes(like: ServerState) -> int:
    """Return how long an upload may be at most: all values whole, and room for what coding may add to them."""
    vectors = [vector for vector in (like.model, like.control, like.buffers) if vector is not None]
    return sum(math.ceil(4.04 * vector.shape[-1]) + 100 for vector in vectors)


def _pack(vectors: Sequence[Tensor | None], precision: Precision) -> bytes:
    encoded = [
        [] if vector is None else encode_in_parts(vector, precision if place == 0 else "float32")
        for place, vector in enumerate(vectors)
    ]
    lengths = [varint(sum(len(part) for part in parts)) for parts in encoded]
    return b"".join([*lengths, *(part for parts in encoded for part in parts)])


def _unpack(data: bytes | memoryview, like: ServerState, most_values: int | None = None) -> list[Entries | None]:
    reader = Reader(data)
    lengths = [reader.varint(f"the length of {name}") for name in VECTORS]
    if sum(lengths) != len(reader.rest):
        raise DecodeError(f"{len(reader.rest)} bytes of vectors where the lengths add up to {sum(lengths)}")
    expected = {"model": like.model, "control": like.control, "buffers": like.buffers}
    expected["average"] = like.model if lengths[-1] else None
    return [
        _vector(name, reader.take(length, name), expected[name], most_values if name == "model" else None)
        for name, length in zip(VECTORS, lengths, strict=True)
    ]


def _vector(name: str, data: memoryview, like: Tensor | None, most_values: int | None) -> Entries | None:
    if bool(data) != (like is not None):
        raise DecodeError(f"{name}: {len(data)} bytes, which does not go with this method and task")
    if like is None:
        return None
    try:
        return decode_entries(data, like.shape[-1], most_values)
    except DecodeError as error:
        raise DecodeError(f"{name}: {error}") from None


def _dense(entries: Entries | None) -> Tensor | None:
    return None if entries is None else entries.dense()
