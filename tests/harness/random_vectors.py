"""Vectors of all kinds, and what becomes of them when bytes are damaged."""

from __future__ import annotations

import binascii
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.codec.bytestream import in_memory
from common.codec.places import entries_of
from common.codec.plain import encode_plain
from common.codec.scales import BFLOAT16, FLOAT32, Grid, Scale, Units
from common.codec.vector import Known, decode, encode
from common.vectors.entries import Entries

FEW = 0b1000_0100  # the bits of a form by which few whole numbers are told from all else
STEP = 2.0**-6
LARGEST_SIZE_BITS = 12


@dataclass(frozen=True)
class Drawn:
    """A vector, what it is written on, and what it is given."""

    vector: Tensor
    scale: Scale
    given: Entries | None

    def encoded(self) -> bytes:
        """Write it."""
        return encode(self.vector, self.scale, self.given)

    @property
    def known(self) -> Known:
        """Return what a receiver has to know."""
        return Known(given=self.given, step=STEP)

    def decoded(self, data: bytes, size: int | None = None) -> Tensor:
        """Read bytes as if they were this vector."""
        return decode(data, len(self.vector) if size is None else size, known=self.known)


def random_vector(generator: np.random.Generator) -> Tensor:
    """Return a vector of any size and density; some have -0.0, subnormals and the largest of numbers."""
    size = int(2 ** generator.uniform(0, LARGEST_SIZE_BITS))
    values = generator.standard_normal(size) * 10.0 ** generator.uniform(-6, 6)
    if generator.random() < 0.3:
        strange = [-0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 1e-38]
        where = generator.random(size) < 0.2
        values[where] = generator.choice(strange, np.count_nonzero(where))
    density = generator.choice([0.0, 0.003, 0.02, 0.1, 0.5, 0.9, 1.0])
    values[generator.random(size) >= density] = 0
    if generator.random() < 0.3:  # in clusters, as layers make them, with long gaps between them
        values[(np.arange(size) // 300) % 3 > 0] = 0
    return torch.from_numpy(values.astype(np.float32))


def draw(generator: np.random.Generator) -> Drawn:
    """Return a vector on any scale, given nothing, one that is near or one that is not."""
    vector, scale = _on_scale(random_vector(generator), generator)
    kind = generator.integers(4)
    if kind == 0:
        return Drawn(vector, scale, None)
    if kind == 1:
        other = torch.zeros_like(vector)
        near = random_vector(generator)[: len(vector)]
        other[: len(near)] = near
    else:  # most of its entries stay, and move a little
        other = vector * torch.from_numpy(generator.normal(1, 0.05, len(vector)).astype(np.float32))
        other[torch.from_numpy(generator.random(len(vector)) < 0.1)] = 0
        other[torch.from_numpy(generator.random(len(vector)) < 0.1)] = 0.01
    return Drawn(vector, scale, entries_of(other.nan_to_num(posinf=3e38, neginf=-3e38)))


def _on_scale(vector: Tensor, generator: np.random.Generator) -> tuple[Tensor, Scale]:
    kind = generator.integers(4)
    if kind == 0:
        return vector, FLOAT32
    if kind == 1:
        rounded = vector.to(torch.bfloat16).to(torch.float32)
        return rounded.nan_to_num(posinf=1.0, neginf=-1.0), BFLOAT16  # the largest ones round to infinity
    if kind == 2:
        steps = torch.clamp(vector / STEP, -(2**23) + 1, 2**23 - 1).round()
        return steps * STEP + 0.0, Grid(STEP)
    clients = int(generator.integers(1, 1000))
    multiples = (vector.double() / STEP).clamp(-(2**20), 2**20).round()
    return (multiples * STEP / clients).float() + 0.0, Units(STEP / clients)


def mutated(data: bytes, size: int, generator: np.random.Generator) -> bytes:
    """Return bytes of an encoded vector with something wrong in them, often with a checksum that fits all the same."""
    checksum_bytes = checksum_bytes_of(data)
    body = bytearray(data[:-checksum_bytes])
    for _ in range(generator.integers(1, 4)):
        kind = generator.integers(4)
        place = (
            int(generator.integers(len(body)))
            if generator.random() < 0.7
            else int(generator.integers(min(6, len(body))))
        )
        if kind == 0:
            body[place] = generator.integers(256)
        elif kind == 1:
            body[place] ^= 1 << int(generator.integers(8))
        elif kind == 2:
            del body[place : place + int(generator.integers(1, 5))]
        else:
            body[place:place] = generator.bytes(int(generator.integers(1, 5)))
        if not body:
            body = bytearray(b"\0")
    return sealed(bytes(body), size) if generator.random() < 0.5 else bytes(body) + data[-checksum_bytes:]


def plain(vector: Tensor, width: int = 4) -> bytes:
    """Write values by themselves, however short the vector is."""
    values = vector.numpy()
    sections = encode_plain(values, int(np.count_nonzero(values.view(np.uint32))), width)
    return sealed(b"".join(part for section in sections for part in in_memory(section)))


def checksum_bytes_of(data: bytes) -> int:
    """Return how long the checksum of an encoded vector is."""
    return 2 if data and data[0] & FEW == 0x80 else 4


def sealed(body: bytes, size: int = 0) -> bytes:
    """Add the checksum to a body of a vector of this size."""
    if checksum_bytes_of(body) == 2:
        return body + binascii.crc_hqx(body, size & 0xFFFF).to_bytes(2, "little")
    return body + zlib.crc32(body).to_bytes(4, "little")
