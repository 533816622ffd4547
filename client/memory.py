"""A client's memory on disk, for clients that may be restarted: written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

import torch
from torch import Tensor

from common.codec.payload import decode_upload
from common.codec.vector import Known, decode_entries
from common.errors import UserError
from common.experiment.config import Source, read
from common.rounds.history import History
from common.rounds.state import ClientMemory, Pending, RoundPlan, ServerState
from common.storage.slots import Slots
from common.storage.spool import Spool

FORMAT = "4"  # of what is saved; what an earlier version saved is as good as lost


class MemoryFile:
    """A client's memory of one run, in its state folder."""

    def __init__(self, folder: Path, client: str, run: str, *, wait_for_disk: bool = True) -> None:
        self._slots = Slots(folder / f"{client}.memory", "a client's memory")
        self._run = run
        self._wait_for_disk = wait_for_disk

    def save(self, memory: ClientMemory, *, wait_for_disk: bool = False) -> None:
        """Replace what was saved; a crash leaves what was there before, or this."""
        pending = memory.pending
        tensors: dict[str, Tensor | None] = {"control": memory.control}
        if pending is not None:
            tensors["sent"] = _as_tensor(pending.sent)
            tensors["reference"] = pending.reference
        tensors |= {f"kept {digest}": _as_tensor(model) for digest, model in memory.kept.items()}
        metadata = {
            "run": self._run,
            "format": FORMAT,
            "history": json.dumps(asdict(memory.history)),
            "plan": _plan_text(pending.plan) if pending is not None else "",
            "kept": " ".join(map(str, memory.kept)),
            "given": str(pending.given) if pending is not None else "",
            "checksum": str(pending.checksum) if pending is not None else "",
        }
        self._slots.write(tensors, metadata, wait_for_disk=wait_for_disk or self._wait_for_disk)

    def load(self, like: ServerState) -> ClientMemory | None:
        """Return what this run's client saved last; None if it never did. `like` gives the sizes."""
        saved = self._slots.read()
        if saved is None or (saved[1].get("run"), saved[1].get("format")) != (self._run, FORMAT):
            return None  # or of an earlier run, which is over, or of an earlier version: the server then re-centres
        tensors, metadata = saved
        try:
            kept = {int(digest): _bytes_of(tensors[f"kept {digest}"]) for digest in metadata["kept"].split()}
            pending = _pending(metadata, tensors, kept, like)
            control = _checked(tensors.get("control"), like)
            history = read(History, json.loads(metadata["history"]), Source("its history"))
        except (KeyError, ValueError, TypeError, RecursionError, UserError) as error:
            where = self._slots.files[0]
            raise UserError(f"{where} is not a client's memory: {error!r}; move it away to start afresh") from None
        return ClientMemory(control=control, history=history, pending=pending, kept=kept)


def known_of(pending: Pending, kept: Mapping[int, bytes | Spool], like: ServerState) -> Known:
    """Return what is known of a pending upload: the model that it is given, and the step of its grid."""
    given = decode_entries(kept[pending.given], like.model.shape[-1]) if pending.given else None
    return Known(given=given, step=pending.plan.step or None)


def _plan_text(plan: RoundPlan) -> str:
    return json.dumps({field.name: getattr(plan, field.name) for field in fields(plan)}, default=list)


def _pending(
    metadata: dict[str, str], tensors: dict[str, Tensor], kept: Mapping[int, bytes], like: ServerState
) -> Pending | None:
    if not metadata["plan"]:
        return None
    plan = read(RoundPlan, json.loads(metadata["plan"]), Source("its plan"))
    pending = Pending(
        plan=plan,
        reference=_checked(tensors.get("reference"), like),
        sent=_bytes_of(tensors["sent"]),
        given=int(metadata["given"]),
        checksum=int(metadata["checksum"]) % 2**32,
    )
    decode_upload(pending.sent, like, known=known_of(pending, kept, like))  # or it is none
    return pending


def _checked(vector: Tensor | None, like: ServerState) -> Tensor | None:
    """Return a vector, if it is one of this model."""
    if vector is not None and (vector.dtype, vector.shape) != (torch.float32, like.model.shape):
        raise ValueError(
            f"a vector of {list(vector.shape)} {vector.dtype} where {list(like.model.shape)} were expected"
        )
    return vector


def _bytes_of(data: Tensor) -> bytes:
    return data.numpy().tobytes()


def _as_tensor(data: bytes | Spool) -> Tensor:
    memory = data.mapped() if isinstance(data, Spool) else bytearray(data)
    return torch.frombuffer(memory, dtype=torch.uint8)
