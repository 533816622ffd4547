"""The vectors of one message <-> bytes: what goes down to a client, what comes up from it.

Four varints give the lengths of four encoded vectors (vector.py), which follow in this order: the model, the control of
Scaffold, the BatchNorm statistics, and the average of an older round for a client that missed some. Length 0 means
that there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from torch import Tensor

from common.codec.bytestream import Bytes, Reader, varint
from common.codec.vector import encode_in_parts, read_vector
from common.errors import DecodeError
from common.rounds.state import Precision, ReceivedUpload, ServerState, Upload
from common.storage.spool import PIECE_BYTES, Spool, spooled
from common.vectors.entries import Blocks, Entries

CHECKSUM_BYTES = 4
VECTORS = ("model", "control", "buffers", "average")


def encode_state(state: ServerState, average: Tensor | None = None) -> bytes | Spool:
    """Write what the server sends down: losslessly, as an average must not be changed on the way."""
    return _pack((state.model, state.control, state.buffers, average), "float32")


def decode_state(data: Bytes, like: ServerState) -> tuple[ServerState, Tensor | None]:
    """Read a state and the average of an older round, if there is one; `like` gives the sizes."""
    model, control, buffers, average = _unpack(data, like, average=like.model)
    assert model is not None
    state = ServerState(model=model.dense(), control=_dense(control), buffers=_dense(buffers))
    return state, _dense(average)


def encode_upload(upload: Upload, precision: Precision) -> bytes | Spool:
    """Write what a client sends up; only the model is rounded to the upload's precision."""
    return _pack((upload.model, upload.control_change, upload.buffers, None), precision)


def decode_upload(data: Bytes, like: ServerState, most_values: int | None = None) -> ReceivedUpload:
    """Read an upload by its entries; `like` gives the sizes, and the model may have so many values at most.

    Vectors in a file are checked for damage, but those that are dense are read only when they are added.
    """
    model, control, buffers, _ = _unpack(data, like, most_values)
    assert model is not None
    return ReceivedUpload(model=model, control_change=control, buffers=buffers, checksum=checksum_of(data))


def checksum_of(upload: Bytes) -> int:
    """Return the checksum that an upload's model ends with: it tells uploads apart, and costs nothing."""
    lengths = _lengths(Reader(upload))
    end = len(upload) - sum(lengths[1:])
    return int.from_bytes(upload[end - CHECKSUM_BYTES : end], "little")


def largest_bytes(like: ServerState) -> int:
    """Return how long an upload may be at most: all values whole, and room for what coding may add to them."""
    vectors = [vector for vector in (like.model, like.control, like.buffers) if vector is not None]
    return sum(math.ceil(4.04 * vector.shape[-1]) + 100 for vector in vectors)


def _pack(vectors: Sequence[Tensor | None], precision: Precision) -> bytes | Spool:
    encoded = [
        None if vector is None else encode_in_parts(vector, precision if place == 0 else "float32")
        for place, vector in enumerate(vectors)
    ]
    lengths = b"".join(varint(vector.size if vector else 0) for vector in encoded)
    parts = chain([lengths], *(vector.parts for vector in encoded if vector))
    size = len(lengths) + sum(vector.size for vector in encoded if vector)
    return b"".join(parts) if size <= PIECE_BYTES else spooled(parts, size)


def _unpack(
    data: Bytes, like: ServerState, most_values: int | None = None, average: Tensor | None = None
) -> list[Entries | Blocks | None]:
    """Read the four vectors; the last one may be left out, and must be where no `average` gives its size."""
    reader = Reader(data)
    lengths = _lengths(reader)
    if sum(lengths) != reader.left:
        raise DecodeError(f"{reader.left} bytes of vectors where the lengths add up to {sum(lengths)}")
    expected = {"model": like.model, "control": like.control, "buffers": like.buffers}
    expected["average"] = average if lengths[-1] else None
    vectors = []
    for name, length in zip(VECTORS, lengths, strict=True):
        try:
            most = most_values if name == "model" else None
            vector = _vector(reader.section(length, name), expected[name], most)
            in_file = isinstance(data, Spool)
            vectors.append(vector.entries() if isinstance(vector, Blocks) and not in_file else vector)
        except DecodeError as error:
            raise DecodeError(f"{name}: {error}") from None
    return vectors


def _lengths(reader: Reader) -> list[int]:
    return [reader.varint(f"the length of {name}") for name in VECTORS]


def _vector(data: Reader, like: Tensor | None, most_values: int | None) -> Entries | Blocks | None:
    if bool(data.left) != (like is not None):
        raise DecodeError(f"{data.left} bytes, which does not go with this method and task")
    return None if like is None else read_vector(data, like.shape[-1], most_values)


def _dense(vector: Entries | Blocks | None) -> Tensor | None:
    return None if vector is None else vector.dense()
