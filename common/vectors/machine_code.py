"""What the extra `fast` has in common: functions as machine code, by numba, and vectors that threads share.

Clients can be threads of one process, where numba's own threads are not safe. So parts of a vector are given to those
with which torch computes: between two of its operators they wait for the next one by counting, which keeps any other
thread from its processor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import torch
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., object])
Done = TypeVar("Done")
Team = Callable[[Callable[[object], object], int], None]  # has a function called by so many threads at once

LEAST_PART = 1 << 19  # entries, for which it is worth to tell another thread


def compiled(signature: str) -> Callable[[Function], Function]:
    """Return a decorator: who imports such a function waits until it is made, or is found where it was left.

    Making takes a second or two. It is left in `__pycache__`, or in the user's cache where that cannot be written to,
    until its own file changes; of another file that it calls into, numba does not notice that.
    """

    def made(function: Function) -> Function:
        try:
            return numba.njit(signature, nogil=True, cache=True)(function)  # type: ignore[no-any-return]
        except (OSError, RuntimeError):  # there is nowhere to leave it for the next process
            return numba.njit(signature, nogil=True)(function)  # type: ignore[no-any-return]

    return made


@intrinsic  # type: ignore[untyped-decorator]
def fused_multiply_add(_: Any, factor: Any, other: Any, summand: Any) -> Any:  # noqa: ANN401 - of numba's own types
    """Return a * b + c, rounded once."""
    return factor(factor, other, summand), lambda _, builder, __, values: builder.fma(*values)


def in_parts(size: int, work: Callable[[int, int], Done]) -> list[Done]:
    """Do a work from entry to entry, by as many threads as torch may use."""
    threads, parts, team = torch.get_num_threads(), size // LEAST_PART, _team()
    if threads == 1 or parts < 2 or team is None:
        return [work(0, size)]
    edges = [size * part // parts for part in range(parts + 1)]
    # The next of a list needs no memory: nothing of Python's runs there, and so no other thread comes between.
    waiting = iter(list(enumerate(pairwise(edges))))
    done: dict[int, Done] = {}
    failed: list[BaseException] = []

    def member() -> Iterator[None]:
        try:
            yield
            for part, (start, stop) in waiting:
                done[part] = work(start, stop)
        except BaseException as error:  # there is no Python below that could catch it
            failed.append(error)

    # A signal that has come is heard of in the first line of Python: here that is behind the `try`.
    members = [member() for _ in range(threads)]
    for one in members:
        next(one)
    team(partial(next, map(next, iter(members))), threads)
    if failed:
        raise failed.pop()
    return [done[part] for part in range(parts)]


@cache
def _team() -> Team | None:
    """Return how torch's threads are called, where they are those of GNU's OpenMP."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        parallel = library.GOMP_parallel
    except (OSError, AttributeError):
        return None
    member = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    parallel.argtypes = [member, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return lambda work, threads: cast("None", parallel(member(work), None, threads, 0))
