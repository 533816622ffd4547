"""Where a program computes."""

from __future__ import annotations

import torch

from common.errors import UserError


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"--device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return torch.device(name)
