"""What the extra `fast` has in common: functions as machine code, by numba, and vectors that threads share.

Clients can be threads of one process, where numba's own threads are not safe: these here are Python's, whose lock the
machine code does not need. Parts are more than threads: a thread of torch's, which waits for its next operator by
counting, may keep one of ours from its processor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numba
import torch

Function = TypeVar("Function", bound=Callable[..., object])
Done = TypeVar("Done")

LEAST_PART = 1 << 19  # entries, for which it is worth to tell another thread


def compiled(signature: str) -> Callable[[Function], Function]:
    """Return a decorator: who imports such a function waits until it is made, or is found where it was left.

    Making takes a second or two. It is left in `__pycache__`, or in the user's cache where that cannot be written to.
    """

    def made(function: Function) -> Function:
        try:
            return numba.njit(signature, nogil=True, cache=True)(function)  # type: ignore[no-any-return]
        except (OSError, RuntimeError):  # there is nowhere to leave it for the next process
            return numba.njit(signature, nogil=True)(function)  # type: ignore[no-any-return]

    return made


def in_parts(size: int, work: Callable[[int, int], Done]) -> list[Done]:
    """Do a work from entry to entry, by as many threads as torch may use."""
    threads, parts = torch.get_num_threads(), size // LEAST_PART
    if threads == 1 or parts < 2:
        return [work(0, size)]
    edges = [size * part // parts for part in range(parts + 1)]
    return list(_threads(threads).map(lambda part: work(*part), pairwise(edges)))


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "vectors")


os.register_at_fork(after_in_child=_threads.cache_clear)
