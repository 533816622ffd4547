"""How much memory a client may take of its machine, and how much it has taken."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from common.errors import UserError
from common.rounds.records import PeakMemory

MEGABYTE = 1 << 20


def limit_memory(megabytes: int) -> None:
    """Let this process take no more memory than this for its data; what needs more fails, and nothing else does."""
    if sys.platform == "win32":
        raise UserError("--memory-limit: this system cannot do that")
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (megabytes * MEGABYTE, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def data_bytes() -> int | None:
    """Return what this process has taken of what `limit_memory` limits; None where the system does not tell."""
    return _told_by_kernel("VmData")


def peak_memory(device: torch.device) -> PeakMemory:
    """Return the most that this process has taken so far, here and on its GPU."""
    vram = torch.cuda.max_memory_allocated(device) / MEGABYTE if device.type == "cuda" else None
    resident = _most_resident_bytes()
    return PeakMemory(None if resident is None else resident / MEGABYTE, vram)


def _told_by_kernel(name: str) -> int | None:
    """Return what Linux says of this process, in bytes."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)


def _counted_bytes() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _most_resident_bytes() -> int | None:
    """Return the quick count; where it has not moved yet, ask again: it begins with what our parent had taken."""
    counted = _counted_bytes()
    return counted if counted != _COUNTED_AT_FIRST else _told_by_kernel("VmHWM") or counted


_COUNTED_AT_FIRST = _counted_bytes()
