"""Tensors in files that survive a crash: written whole or not at all, and on the disk when we go on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from common.errors import UserError


def write_durably(path: Path, tensors: Mapping[str, Tensor | None], metadata: dict[str, str]) -> None:
    """Replace a file; a crash at any moment leaves the old one or the new one."""
    present = {name: tensor.cpu().contiguous() for name, tensor in tensors.items() if tensor is not None}
    draft = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(present, draft, metadata=metadata)
        _sync(draft)
        draft.replace(path)
        _sync(path.parent)  # the name is on the disk as well
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {path}: {error}") from None


def read_durable(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Return tensors and metadata; None where there is no such file."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is not {what}: {error}; move it away to start afresh") from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
