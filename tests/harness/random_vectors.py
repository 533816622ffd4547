"""Vectors of all kinds, and what becomes of them when bytes are damaged."""

from __future__ import annotations

import zlib

import numpy as np
import torch

from common.rounds.state import Precision


def random_vector(generator: np.random.Generator) -> tuple[torch.Tensor, Precision]:
    """Return a vector of any size and density; some have -0.0, subnormals and the largest of numbers."""
    size = int(2 ** generator.uniform(0, 12))
    values = generator.standard_normal(size) * 10.0 ** generator.uniform(-6, 6)
    if generator.random() < 0.3:
        strange = [-0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 1e-38]
        where = generator.random(size) < 0.2
        values[where] = generator.choice(strange, np.count_nonzero(where))
    density = generator.choice([0.0, 0.003, 0.02, 0.1, 0.5, 0.9, 1.0])
    values[generator.random(size) >= density] = 0
    if generator.random() < 0.3:  # in clusters, as layers make them, with long gaps between them
        values[(np.arange(size) // 300) % 3 > 0] = 0
    vector = torch.from_numpy(values.astype(np.float32))
    if generator.random() < 0.5:
        return vector, "float32"
    rounded = vector.to(torch.bfloat16).to(torch.float32)
    return rounded.nan_to_num(posinf=1.0, neginf=-1.0), "bfloat16"  # the largest ones round to infinity


def mutated(data: bytes, generator: np.random.Generator) -> bytes:
    """Return bytes of an encoded vector with something wrong in them, often with a checksum that fits all the same."""
    body = bytearray(data[:-4])
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
    if generator.random() < 0.5:
        return bytes(body) + zlib.crc32(body).to_bytes(4, "little")
    return bytes(body) + data[-4:]
