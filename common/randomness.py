"""Random streams that depend on nothing but the seed and what they are for."""

from __future__ import annotations

import zlib

import numpy as np
import torch

_CPU = torch.device("cpu")


def stream(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return the generator of one purpose, e.g. `stream(seed, "batches", client, round)`."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *numbers])


def torch_stream(seed: int, purpose: str, *numbers: int, device: torch.device = _CPU) -> torch.Generator:
    """Return the same for torch operations: on the CPU, where every device draws alike, or on the device itself."""
    generator = torch.Generator("cpu" if device.type == "meta" else device)
    generator.manual_seed(int(stream(seed, purpose, *numbers).integers(2**63)))
    return generator
