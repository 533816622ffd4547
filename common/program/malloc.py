"""How this process deals with memory."""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_A_LOT = 2**31 - 1
_LARGEST_KEPT_BYTES = 32 << 20  # the most that glibc takes


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, for the next round, but for arrays as large as a large model.

    By default it returns every array to the system at once and asks for it anew; to have the same pages cleared and
    mapped again and again took as long as all that is done with a model of 45 MB in a round. The few very large ones
    go back all the same: kept, they would leave gaps in which the next does not fit, and be in memory twice.
    """
    if not sys.platform.startswith("linux"):
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch: large tensors in large pages, a fourth of the time
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, musl does not
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _A_LOT)
        mallopt(_M_ARENA_MAX, 1)
