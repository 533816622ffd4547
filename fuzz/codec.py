"""Payloads: what is accepted means what the documentation says, in memory and in a file, and comes back when written.

An input is a byte that says what is expected, and a payload.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from random import Random

import numpy as np
import torch
from torch import Tensor

from common.codec.bytestream import Bytes, Reader, varint
from common.codec.payload import decode_state, decode_upload, encode_state, encode_upload
from common.codec.places import entries_of
from common.codec.scales import BFLOAT16, FLOAT32, Grid, Scale, Units
from common.codec.vector import Known
from common.errors import DecodeError
from common.rounds.state import ServerState, Upload
from common.storage.spool import spooled
from fuzz.target import Change, Target, refused
from tests.harness.random_vectors import checksum_bytes_of, sealed
from tests.harness.textbook_codec import book_decode

SIZES = (1, 6, 281, 70_000)  # of the model; the last one is read in two blocks
MOST_VALUES = 28
LONGEST_BY_THE_BOOK = 1_000  # that the decoder of the documentation reads in a moment
MOST_SEEDED = 1_000  # values in a seed
SHARE_MENDED = 0.8
STEP = 2.0**-4


def like(kind: int) -> ServerState:
    """Return the sizes that are expected: four of the model, with a control or without, with buffers or without."""
    control, buffers = kind & 4, kind & 8
    size = SIZES[kind & 3]
    return ServerState(
        model=torch.zeros(size),
        control=torch.zeros(size) if control else None,
        buffers=torch.zeros(9) if buffers else None,
    )


def known(kind: int) -> Known:
    """Return what is known of the model: a step, and in half of all cases another model."""
    generator = torch.Generator().manual_seed(0)
    given = entries_of(_vector(like(kind).model, 0.2, generator)) if kind & 64 else None
    return Known(given=given, step=STEP)


def read(data: bytes) -> bool:
    """Read a payload as a client does or as the server does."""
    if not data:
        return False
    kind, payload = data[0], data[1:]
    in_file = spooled([payload], len(payload))
    vectors, also = _vectors(payload, kind), _vectors(in_file, kind)
    assert _bits(vectors) == _bits(also), "bytes and a file say different things"
    if vectors is None:
        return False
    _compare_with_the_book(payload, vectors, kind)
    assert _bits(_vectors(_written(vectors, kind), kind)) == _bits(vectors), "it does not come back"
    return True


def _vectors(payload: Bytes, kind: int) -> list[Tensor | None] | None:
    """Return the four vectors; None where they are refused."""
    try:
        if kind & 16:
            state, average = decode_state(payload, like(kind), known(kind))
            return [state.model, state.control, state.buffers, average]
        upload = decode_upload(payload, like(kind), MOST_VALUES if kind & 32 else None, known(kind))
        received = (upload.model, upload.control_change, upload.buffers)
        return [None if vector is None else vector.dense() for vector in received] + [None]
    except DecodeError as error:
        refused(error)
        return None


def _written(vectors: list[Tensor | None], kind: int) -> Bytes:
    model, control, buffers, average = vectors
    assert model is not None
    if kind & 16:
        return encode_state(ServerState(model=model, control=control, buffers=buffers), average)
    return encode_upload(Upload(model=model, control_change=control, buffers=buffers))


def _bits(vectors: list[Tensor | None] | None) -> list[bytes | None] | None:
    if vectors is None:
        return None
    return [None if vector is None else vector.numpy().tobytes() for vector in vectors]


def _compare_with_the_book(payload: bytes, vectors: list[Tensor | None], kind: int) -> None:
    there = [vector for vector in vectors if vector is not None]
    given = known(kind).given
    for place, (part, vector) in enumerate(zip(_parts(payload, kind), there, strict=True)):
        if vector.numel() <= LONGEST_BY_THE_BOOK:
            before = given.dense().tolist() if given and not place else None
            by_the_book = np.array(book_decode(part, vector.numel(), before, STEP), np.float32)
            assert by_the_book.tobytes() == vector.numpy().tobytes(), "the documentation says otherwise"


def _parts(payload: bytes, kind: int) -> list[bytes]:
    """Take a payload apart into its vectors."""
    reader = Reader(payload)
    expected = like(kind)
    count = sum(vector is not None for vector in (expected.model, expected.control, expected.buffers))
    if kind & 16:
        count += reader.take(1, "a first byte")[0] & 1
    lengths = [reader.varint("a length") for _ in range(count - 1)]
    parts = [bytes(reader.take(min(length, reader.left), "a vector")) for length in lengths]
    return [*parts, bytes(reader.take(reader.left, "a vector"))]


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """Change what is expected, or a payload."""
    kind, payload = data[:1] or b"\0", data[1:]
    if random.random() < 0.1:
        return bytes([random.randrange(128)]) + payload
    return kind + mutate_payload(payload, change, random, kind[0])


def mutate_payload(payload: bytes, change: Change, random: Random, kind: int = 0) -> bytes:
    """Change one vector of a payload, mostly with lengths and checksums that fit; its kind says what it has."""
    try:
        parts = _parts(payload, kind)
    except DecodeError:
        return change(payload)
    place = random.choice([place for place, part in enumerate(parts) if part] or [0])
    if random.random() < SHARE_MENDED:
        body = change(parts[place][: -checksum_bytes_of(parts[place])])
        parts[place] = sealed(body, SIZES[kind & 3])
    else:
        parts[place] = change(parts[place])
    head = payload[:1] if kind & 16 else b""
    return head + b"".join(varint(len(part)) for part in parts[:-1]) + b"".join(parts)


def seeds() -> Iterator[bytes]:
    """Yield payloads of all forms: vectors of each size and of several densities, up and down, in both precisions."""
    for kind in (*range(32), *range(64, 96)):
        for density in (0.0, 0.01, 0.1, 1.0):
            if density * like(kind).model.numel() <= MOST_SEEDED:
                yield from (bytes([kind]) + bytes(payload[:]) for payload in _payloads(kind, density))
    yield bytes([3]) + _long()


def _payloads(kind: int, density: float) -> Iterator[Bytes]:
    expected, generator = like(kind), torch.Generator().manual_seed(kind)
    model = _vector(expected.model, density, generator)
    control = None if expected.control is None else _vector(expected.control, density, generator)
    buffers = None if expected.buffers is None else _vector(expected.buffers, 1.0, generator)
    on_grid = torch.round(model / STEP) * STEP + 0.0
    scales: list[tuple[Tensor, Scale]] = [(model, FLOAT32), (model, BFLOAT16), (on_grid, Grid(STEP))]
    for one, scale in [*scales, (on_grid / 3, Units(STEP / 3))]:
        if kind & 16:
            unit = scale.unit if isinstance(scale, Units) else 0.0
            state = ServerState(model=one, control=control, buffers=buffers, unit=unit)
            yield encode_state(state, model, known(kind).given)
        else:
            upload = Upload(model=one, control_change=control, buffers=buffers)
            yield encode_upload(upload, scale, known(kind).given)


def _vector(expected: Tensor, density: float, generator: torch.Generator) -> Tensor:
    is_kept = torch.rand(expected.shape, generator=generator) < density
    return torch.where(is_kept, torch.randn(expected.shape, generator=generator), 0.0).to(torch.bfloat16).float()


def _long() -> bytes:
    """Return a vector that is long, but not when it is written: ones, as only another encoder would write them."""
    planes = [zlib.compress(bytes([byte]) * SIZES[3], wbits=-15) for byte in (0x3F, 0x80)]
    body = bytes([0b11100]) + b"".join(varint(len(plane)) for plane in planes) + b"".join(planes)
    return body + zlib.crc32(body).to_bytes(4, "little")


TARGET = Target(read=read, seeds=seeds, mutate=mutate, longest_bytes=16_384)
