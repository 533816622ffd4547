"""How this process deals with memory."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_A_LOT = 2**31 - 1


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, for the next round.

    By default it returns every large array to the system at once and asks for it anew; to have the same pages cleared
    and mapped again and again takes longer than all that is done with a model of 45 MB in a round.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, musl does not
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _A_LOT)
        mallopt(_M_ARENA_MAX, 1)
