"""A client's memory on disk, for clients that may be restarted: written whole or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from common.errors import UserError
from common.types import ClientMemory, Pending, RoundPlan, Upload


class MemoryFile:
    """One file in the client's state folder, for one run."""

    def __init__(self, folder: Path, client: str, run: str) -> None:
        self.path = folder / f"{client}.safetensors"
        self._run = run

    def save(self, memory: ClientMemory) -> None:
        """Replace what was saved; a crash leaves the old file or the new one."""
        pending = memory.pending
        tensors: dict[str, Tensor | None] = {"control": memory.control}
        if pending is not None:
            upload = pending.upload
            tensors |= {"model": upload.model, "control_change": upload.control_change, "buffers": upload.buffers}
            tensors["reference"] = None if pending.reference is upload.model else pending.reference
        plan = json.dumps(asdict(pending.plan)) if pending is not None else ""
        present = {name: tensor.cpu().contiguous() for name, tensor in tensors.items() if tensor is not None}
        draft = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_file(present, draft, metadata={"run": self._run, "plan": plan})
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.replace(self.path)
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot write the client's memory to {self.path}: {error}") from None

    def load(self) -> ClientMemory | None:
        """Return what this run's client saved last; None if it never did."""
        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except (OSError, SafetensorError) as error:
            raise UserError(f"{self.path} is not a client's memory: {error}; move it away to start afresh") from None
        if metadata.get("run") != self._run:
            return None  # of an earlier run, which is over
        return ClientMemory(control=tensors.get("control"), pending=_pending(metadata.get("plan", ""), tensors))


def _pending(plan: str, tensors: dict[str, Tensor]) -> Pending | None:
    if not plan:
        return None
    upload = Upload(
        model=tensors["model"], control_change=tensors.get("control_change"), buffers=tensors.get("buffers")
    )
    reference = tensors.get("reference", upload.model)
    return Pending(plan=RoundPlan(**json.loads(plan)), upload=upload, reference=reference)
