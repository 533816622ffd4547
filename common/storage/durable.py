"""Tensors in files that survive a crash: written whole or not at all, and on the disk when we go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from common.errors import UserError
from common.storage.disk import sync, writing


def write_durably(path: Path, tensors: Mapping[str, Tensor | None], metadata: dict[str, str]) -> None:
    """Replace a file; a crash at any moment leaves the old one or the new one."""
    present = {name: tensor.cpu().contiguous() for name, tensor in tensors.items() if tensor is not None}
    draft = path.with_suffix(".new")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(present, draft, metadata=metadata)
            sync(draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)  # half of a file would take the room that is missing
        sync(path.parent)  # the name is on the disk as well


def read_durable(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Return tensors and metadata; None where there is no such file."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is not {what}: {error}; move it away to start afresh") from None
