"""Random streams that depend on nothing but the seed and what they are for."""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch

Made = TypeVar("Made")
_global = threading.RLock()
_CPU = torch.device("cpu")


def stream(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return the generator of one purpose, e.g. `stream(seed, "batches", client, round)`."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *numbers])


def torch_stream(seed: int, purpose: str, *numbers: int, device: torch.device = _CPU) -> torch.Generator:
    """Return the same for torch operations: on the CPU, where every device draws alike, or on the device itself."""
    generator = torch.Generator("cpu" if device.type == "meta" else device)
    generator.manual_seed(int(stream(seed, purpose, *numbers).integers(2**63)))
    return generator


@contextmanager
def global_stream(device: torch.device = _CPU) -> Iterator[None]:
    """Have the random numbers to oneself that modules draw without a generator; they are then as they were before.

    They are one for all threads of a process, and clients may be threads: these take turns.
    """
    with _global, torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


@contextmanager
def all_streams() -> Iterator[None]:
    """Have numpy's and Python's global random numbers to oneself as well; they are then as they were before."""
    with global_stream():
        of_numpy, of_python = np.random.get_state(), random.getstate()
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


def seed_all(number: int) -> None:
    """Set all the random numbers that code may draw on the CPU without a generator."""
    torch.default_generator.manual_seed(number)
    np.random.seed(number % (1 << 32))  # as many as it takes
    random.seed(number)


def initialized(make: Callable[[], Made], seed: int) -> Made:
    """Make a network, or what has one, whose first weights depend on the seed alone."""
    with global_stream():
        torch.manual_seed(torch_stream(seed, "initial model").initial_seed())
        return make()
