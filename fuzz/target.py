"""What a fuzzer is made of: a reader, real inputs to start from, and a way to change them that gets past checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

Change = Callable[[bytes], bytes]  # the engine's own way to change bytes, which knows nothing of their form
Mutate = Callable[[bytes, Change, Random], bytes]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A reader that returns whether it has accepted the bytes, and raises what is a fault of ours."""

    read: Callable[[bytes], bool]
    seeds: Callable[[], Iterable[bytes]]
    mutate: Mutate
    longest_bytes: int = 4_096


def refused(error: Exception) -> bool:
    """Say that bytes were not accepted; the reason must be a text that can be sent and shown."""
    assert str(error).encode()
    return False
