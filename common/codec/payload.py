"""The vectors of one message <-> bytes: what goes down to a client, what comes up from it.

Varints give the lengths of all vectors but the last, then come the vectors (vector.py), in this order: the model, the
control of Scaffold, the BatchNorm statistics, and the average of an older round for a client that missed some. Both
sides know which there are, but for the average: what goes down begins with a byte that is 1 if there is one, else 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

from torch import Tensor
from zlib_ng import zlib_ng

from common.codec.bytestream import Bytes, Reader, varint
from common.codec.scales import BFLOAT16, FLOAT32, Scale, Units
from common.codec.vector import NOTHING, Encoded, Known, encode_in_parts, read_vector
from common.errors import DecodeError
from common.rounds.state import ReceivedUpload, ServerState, Upload
from common.storage.spool import PIECE_BYTES, Spool, spooled
from common.vectors.entries import Blocks, Entries


def encode_state(state: ServerState, average: Tensor | None = None, given: Entries | None = None) -> bytes | Spool:
    """Write what the server sends down: losslessly, as an average must not be changed on the way."""
    scale = Units(state.unit) if state.unit else FLOAT32
    vectors = [encode_in_parts(state.model, scale, given), *map(_whole, (state.control, state.buffers, average))]
    return _pack(vectors, bytes([average is not None]))


def decode_state(data: Bytes, like: ServerState, known: Known = NOTHING) -> tuple[ServerState, Tensor | None]:
    """Read a state and the average of an older round, if there is one; `like` gives the sizes."""
    reader = Reader(data)
    has_average = reader.take(1, "whether there is an average")[0]
    if has_average > 1:
        raise DecodeError(f"a first byte that is {has_average}")
    vectors = _unpack(reader, {**_sizes(like), **({"average": like.model.shape[-1]} if has_average else {})}, known)
    dense = {name: vector.dense() for name, vector in vectors.items()}
    state = ServerState(model=dense["model"], control=dense.get("control"), buffers=dense.get("buffers"))
    return state, dense.get("average")


def encode_upload(upload: Upload, scale: Scale = FLOAT32, given: Entries | None = None) -> bytes | Spool:
    """Write what a client sends up; only the model is on a scale, and given another."""
    model = encode_in_parts(upload.model, scale, given)
    short = FLOAT32 if scale is FLOAT32 else BFLOAT16
    return _pack([model, _whole(upload.control_change), _whole(upload.buffers, short)])


def decode_upload(
    data: Bytes, like: ServerState, most_values: int | None = None, known: Known = NOTHING
) -> ReceivedUpload:
    """Read an upload by its entries; `like` gives the sizes, and the model may have so many values at most.

    Vectors in a file are checked for damage, but those that are dense are read only when they are added.
    """
    vectors = _unpack(Reader(data), _sizes(like), known, most_values, in_file=isinstance(data, Spool))
    return ReceivedUpload(
        model=vectors["model"],
        control_change=vectors.get("control"),
        buffers=vectors.get("buffers"),
        checksum=checksum_of(data),
    )


def checksum_of(payload: Bytes, count: int | None = None) -> int:
    """Return the Adler-32 of a payload, or of so many bytes at its beginning: it tells payloads apart.

    A CRC-32 would not: of bytes that end with their own, it is the same whatever they are.
    """
    checksum, end = 1, len(payload) if count is None else count
    for start in range(0, end, PIECE_BYTES):
        checksum = zlib_ng.adler32(payload[start : min(start + PIECE_BYTES, end)], checksum)
    return checksum


def largest_bytes(like: ServerState) -> int:
    """Return how long an upload may be at most: all values whole, and room for what coding may add to them."""
    return sum(math.ceil(4.04 * size) + 100 for size in _sizes(like).values())


def _sizes(like: ServerState) -> dict[str, int]:
    vectors = {"model": like.model, "control": like.control, "buffers": like.buffers}
    return {name: vector.shape[-1] for name, vector in vectors.items() if vector is not None}


def _whole(vector: Tensor | None, scale: Scale = FLOAT32) -> Encoded | None:
    return None if vector is None else encode_in_parts(vector, scale)


def _pack(vectors: Sequence[Encoded | None], head: bytes = b"") -> bytes | Spool:
    there = [vector for vector in vectors if vector]
    head += b"".join(varint(vector.size) for vector in there[:-1])
    parts = chain([head], *(vector.parts for vector in there))
    size = len(head) + sum(vector.size for vector in there)
    return b"".join(parts) if size <= PIECE_BYTES else spooled(parts, size)


def _unpack(
    reader: Reader,
    sizes: Mapping[str, int],
    known: Known,
    most_values: int | None = None,
    *,
    in_file: bool = False,
) -> dict[str, Entries | Blocks]:
    """Read vectors of these sizes; what is known is known of the model."""
    *but_the_last, last = sizes
    lengths = {name: reader.varint(f"the length of {name}") for name in but_the_last}
    vectors: dict[str, Entries | Blocks] = {}
    for name, size in sizes.items():
        try:
            section = reader.section(reader.left if name == last else lengths[name], name)
            is_model = name == "model"
            vector = read_vector(section, size, most_values if is_model else None, known if is_model else NOTHING)
            vectors[name] = vector.entries() if isinstance(vector, Blocks) and not in_file else vector
        except DecodeError as error:
            raise DecodeError(f"{name}: {error}") from None
    return vectors
