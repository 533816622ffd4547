"""A client's memory: two files, of which the one that is read last was written by anybody.

An input is that file. What is loaded goes with the run's sizes, and comes back when it is saved.
"""

from __future__ import annotations

import json
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from client.memory import MemoryFile
from common.codec.given import Given
from common.codec.payload import encode_upload
from common.codec.vector import encode
from common.errors import UserError
from common.rounds.history import History
from common.rounds.state import ClientMemory, Pending, RoundPlan, ServerState, Upload
from common.storage.slots import HEADER, MAGIC
from fuzz.codec import mutate_payload
from fuzz.target import Change, Target, refused

NUMBERS = ("round", "local_steps", "probability", "learning_rate", "density", "step")  # of a plan
RUN, CLIENT = "digits", "client-0"
LIKE = ServerState(model=torch.zeros(6))
KINDS = {"BOOL": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F16": 2, "I32": 4, "F32": 4, "F64": 8, "C64": 8}
VALUES = ("", "0", "-1", "1_0", "3.5", "null", "[]", "{}", "9" * 5_000, "\ud800", RUN)
_FOLDER = tempfile.TemporaryDirectory()


def read(data: bytes) -> bool:
    """Load a memory."""
    folder = Path(_FOLDER.name)
    (folder / f"{CLIENT}.memory.0").write_bytes(data)
    (folder / f"{CLIENT}.memory.1").write_bytes(_OLDER)
    try:
        memory = MemoryFile(folder, CLIENT, RUN).load(LIKE)
    except UserError as error:
        return refused(error)
    if memory is None:
        return False
    assert all((vector.shape, vector.dtype) == (LIKE.model.shape, torch.float32) for vector in _vectors(memory))
    plan = memory.pending.plan if memory.pending else None
    assert plan is None or all(isinstance(getattr(plan, name), int | float) for name in NUMBERS)
    memory.history.after_round(1, 0)
    _check_that_it_comes_back(memory)
    return True


def _check_that_it_comes_back(memory: ClientMemory) -> None:
    file = MemoryFile(Path(_FOLDER.name) / "again", CLIENT, RUN, wait_for_disk=False)
    file.save(memory)
    again = file.load(LIKE)
    assert again is not None
    assert _said(again) == _said(memory), "it does not come back"


def _said(memory: ClientMemory) -> str:
    """Return all that a memory has, also numbers that are not equal to themselves."""
    return f"{memory} {[vector.numpy().tobytes() for vector in _vectors(memory)]}"


def _vectors(memory: ClientMemory) -> list[Tensor]:
    vectors = [memory.control, memory.pending.reference if memory.pending else None]
    return [vector for vector in vectors if vector is not None]


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """Change metadata or a tensor, in a file whose lengths and checksum fit."""
    body = data[HEADER.size :]
    try:
        (length,) = struct.unpack_from("<Q", body)
        description = json.loads(body[8 : 8 + length])
        tensors = {
            name: _taken(body[8 + length :], part) for name, part in description.items() if name != "__metadata__"
        }
        _change_one(description, tensors, change, random)
        return file_of(_laid_out(description, tensors))
    except (ValueError, struct.error, LookupError, TypeError, AttributeError):  # no longer such a file
        return file_of(change(body))


def _taken(data: bytes, part: dict[str, Any]) -> bytes:
    start, end = part["data_offsets"]
    return data[start:end]


def _change_one(description: dict[str, Any], tensors: dict[str, bytes], change: Change, random: Random) -> None:
    kind, name = random.randrange(5), random.choice(list(description))
    if name == "__metadata__":
        metadata = description[name]
        key = random.choice(list(metadata))
        known = change(metadata[key].encode()).decode(errors="replace")
        metadata[key] = random.choice((known, random.choice(VALUES), json.loads(metadata["plan"] or "0")))
        if kind == 0:
            del metadata[key]
    elif kind == 0:
        del description[name], tensors[name]
    elif kind == 1:
        description[name]["dtype"] = random.choice(list(KINDS))
    elif kind == 2:
        description[name]["shape"] = random.choice(([], [2, -1], [0], [len(tensors[name])], [1, len(tensors[name])]))
    else:
        tensors[name] = mutate_payload(tensors[name], change, random) if name == "sent" else change(tensors[name])
        size = len(tensors[name]) // KINDS.get(description[name]["dtype"], 1)
        description[name]["shape"] = [size]


def _laid_out(description: dict[str, Any], tensors: dict[str, bytes]) -> bytes:
    start = 0
    for name, data in tensors.items():
        description[name]["data_offsets"] = [start, start + len(data)]
        start += len(data)
    text = json.dumps(description).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensors.values())


def file_of(body: bytes, number: int = 3) -> bytes:
    """Return a file whose header goes with what is in it."""
    return HEADER.pack(MAGIC, number, len(body), zlib.crc32(body)) + body


def seeds() -> Iterator[bytes]:
    """Yield what a client saves: at first, in mid-run, of methods with a control variate and without."""
    plan = RoundPlan(round=2, local_steps=16, probability=1 / 16, learning_rate=0.5, density=0.1, precision="float32")
    control, model = torch.arange(6.0), torch.tensor([0.0, 0.0, -2.0, 0.0, 0.0, 0.0])
    sent = bytes(encode_upload(Upload(model=model))[:])
    whole = Pending(plan=plan, reference=None, sent=sent)
    other = Pending(plan=plan, reference=control, sent=sent)
    history = History(counted=1, recentred=1, digest=2**64 - 1)
    yield _saved(ClientMemory())
    yield _saved(ClientMemory(control=control, history=history))
    yield _saved(ClientMemory(control=control, history=history, pending=whole))
    yield _saved(ClientMemory(control=control, history=history, pending=other))
    given = Given.of(torch.tensor([0.0, 1.0, -3.0, 0.0, 0.0, 0.0]))
    near = replace(whole, sent=bytes(encode_upload(Upload(model=model), given=given.entries)[:]), given=given.digest)
    kept = {given.digest: encode(given.entries.dense())}
    yield _saved(ClientMemory(control=control, history=history, pending=near, kept=kept))


def _saved(memory: ClientMemory) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        MemoryFile(Path(folder), CLIENT, RUN, wait_for_disk=False).save(memory)
        data = (Path(folder) / f"{CLIENT}.memory.0").read_bytes()
    _, _, length, _ = HEADER.unpack_from(data)
    return file_of(data[HEADER.size : HEADER.size + length])


_OLDER = file_of(next(seeds())[HEADER.size :], number=2)
TARGET = Target(read=read, seeds=seeds, mutate=mutate)
