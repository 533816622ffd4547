"""Where a client computes, and with how much memory."""

from __future__ import annotations

import sys

import torch

from common.errors import UserError
from common.types import PeakMemory

MEGABYTE = 1 << 20


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"--device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return torch.device(name)


def limit_memory(megabytes: int) -> None:
    """Let this process take no more memory than this for its data; what needs more fails, and nothing else does."""
    if sys.platform == "win32":
        raise UserError("--memory-limit: this system cannot do that")
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (megabytes * MEGABYTE, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def peak_memory(device: torch.device) -> PeakMemory:
    """Return the most that this process has taken so far, here and on its GPU."""
    vram = torch.cuda.max_memory_allocated(device) / MEGABYTE if device.type == "cuda" else None
    if sys.platform == "win32":
        return PeakMemory(None, vram)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return PeakMemory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEGABYTE, vram)
