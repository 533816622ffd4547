"""Where a program computes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import torch

from common.errors import UserError
from common.units import bytes_text


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"--device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return torch.device(name)


def devices_here() -> list[str]:
    """Return what this machine can compute on."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def deal_out(devices: str, clients: int, here: Sequence[str]) -> list[str]:
    """Return a device for each client, in turns: of a list such as `cuda:0,cuda:1`; `auto` is all GPUs, or the CPU."""
    named = [name.strip() for name in devices.split(",")]
    if named == ["auto"]:
        named = [name for name in here if name.startswith("cuda")] or ["cpu"]
    if missing := [name for name in named if name not in here]:
        raise UserError(f"--devices: {missing[0]!r} is not on this machine; torch finds {', '.join(here)}")
    return list(islice(cycle(named), clients))


def describe_device(device: torch.device) -> str:
    """Say what a device is, for people."""
    if device.type == "cpu":
        return f"cpu (threads: {torch.get_num_threads()})"
    if device.type != "cuda":
        return str(device)
    found = torch.cuda.get_device_properties(device)
    return f"{device}: {found.name}, {bytes_text(found.total_memory)}, CUDA {torch.version.cuda}"
