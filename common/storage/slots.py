"""Tensors that are replaced again and again, safe at any moment: two files, of which the older one is written over.

A crash in the middle of that leaves the newer one, which nobody has touched. To write where there is room already takes
a fifth of what a new file takes that is put in the place of the old one: no name changes, and no size.

A file is a header (which writing it is, how long the rest is, and a checksum), and then tensors in the format of
safetensors. Of two files that are whole, the one with the higher number counts.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor
from zlib_ng import zlib_ng

from common.errors import UserError
from common.storage.disk import reserve_room, sync, writing

HEADER = struct.Struct("<8sQQI4x")  # the magic, the number of the writing, the length of the rest, its CRC-32
MAGIC = b"proxskip"
BLOCK_BYTES = 1 << 20  # that are read at a time
GROWTH = 1.25  # so that a body that grows a little does not make its file grow each time
UNTIL_ON_DISK = getattr(os, "RWF_DSYNC", 0)  # a third less than to ask for it afterwards; macOS has no such thing
KINDS = {torch.float32: "F32", torch.float64: "F64", torch.uint8: "U8"}

Saved = tuple[dict[str, Tensor], dict[str, str]]  # tensors, metadata


@dataclass(frozen=True)
class Slot:
    """What is in a file."""

    number: int = 0  # of the writing; 0: none that is whole
    size: int = 0  # of the file, in bytes
    length: int = 0  # of what follows the header


class Slots:
    """Two files in a folder, NAME.0 and NAME.1."""

    def __init__(self, path: Path, what: str) -> None:
        self.files = [path.with_name(f"{path.name}.{place}") for place in range(2)]
        self._what = what
        self._numbers: list[int] = []  # of the writings that are in the files, when that is known

    def write(
        self, tensors: Mapping[str, Tensor | None], metadata: dict[str, str], *, wait_for_disk: bool = True
    ) -> None:
        """Replace what is saved; without waiting for the disk it is only safe as long as the power does not fail."""
        numbers = self._numbers or [_read(file).number for file in self.files]
        place, number = numbers.index(min(numbers)), max(numbers) + 1
        body = _in_parts({name: tensor for name, tensor in tensors.items() if tensor is not None}, metadata)
        length = sum(len(part) for part in body)
        parts = [memoryview(HEADER.pack(MAGIC, number, length, _checksum(body))), *body]
        with writing(self.files[place]):
            _write(self.files[place], parts, wait_for_disk=wait_for_disk)
        numbers[place] = number
        self._numbers = numbers

    def read(self) -> Saved | None:
        """Return what was saved last; None where nothing was."""
        slots = [_read(file) for file in self.files]
        self._numbers = [slot.number for slot in slots]
        newest = max(slots, key=lambda slot: slot.number)
        if not newest.number:
            if damaged := [file for file, slot in zip(self.files, slots, strict=True) if slot.size]:
                raise UserError(f"{damaged[0]} is not {self._what}; move it away to start afresh")
            return None
        file = self.files[slots.index(newest)]
        body = _body(file, newest)
        try:
            (length,) = struct.unpack_from("<Q", body)
            return load(body), json.loads(body[8 : 8 + length]).get("__metadata__") or {}
        except (SafetensorError, ValueError, KeyError, struct.error) as error:  # KeyError: a kind that torch has not
            raise UserError(f"{file} is not {self._what}: {error}; move it away to start afresh") from None


def _read(file: Path) -> Slot:
    """Find what is in a file, of which only a block is in memory."""
    with suppress(FileNotFoundError), _reading(file) as data:
        return _found_in(data)
    return Slot()


def _found_in(data: BinaryIO) -> Slot:
    size = os.fstat(data.fileno()).st_size
    if size < HEADER.size:
        return Slot(size=size)
    magic, number, length, expected = HEADER.unpack(data.read(HEADER.size))
    checksum, left = 0, length
    while block := data.read(min(left, BLOCK_BYTES)):
        checksum, left = zlib_ng.crc32(block, checksum), left - len(block)
    is_whole = magic == MAGIC and not left and checksum == expected
    return Slot(number if is_whole else 0, size, length)


def _body(file: Path, slot: Slot) -> bytes:
    with _reading(file) as data:
        data.seek(HEADER.size)
        return data.read(slot.length)


@contextmanager
def _reading(file: Path) -> Iterator[BinaryIO]:
    try:
        with file.open("rb") as data:
            yield data
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None


def _checksum(parts: list[memoryview]) -> int:
    value = 0
    for part in parts:
        value = zlib_ng.crc32(part, value)
    return value


def _in_parts(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> list[memoryview]:
    """Return tensors in the format of safetensors, without a copy of what is on the CPU."""
    arrays = {name: _array(tensor) for name, tensor in tensors.items()}
    description: dict[str, object] = {"__metadata__": metadata}
    start = 0
    for name, array in arrays.items():
        end = start + array.nbytes
        kind, shape = KINDS[tensors[name].dtype], list(tensors[name].shape)
        description[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(description).encode()
    text += b" " * (-len(text) % 8)
    head = memoryview(struct.pack("<Q", len(text)) + text)
    return [head, *(array.data for array in arrays.values())]


def _array(tensor: Tensor) -> NDArray[np.uint8]:
    return np.ascontiguousarray(tensor.numpy(force=True)).reshape(-1).view(np.uint8)


def _write(file: Path, parts: list[memoryview], *, wait_for_disk: bool) -> None:
    """Write from the start of a file."""
    length = sum(len(part) for part in parts)
    descriptor = _opened(file)
    try:
        if os.fstat(descriptor).st_size < length:
            reserve_room(descriptor, int(GROWTH * length))
            sync(file.parent)  # it may be new there
        _write_all(descriptor, parts, wait_for_disk=wait_for_disk)
    finally:
        os.close(descriptor)


def _opened(file: Path) -> int:
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o600)


def _write_all(descriptor: int, parts: list[memoryview], *, wait_for_disk: bool) -> None:
    start = 0
    while parts:
        written = os.pwritev(descriptor, parts, start, UNTIL_ON_DISK if wait_for_disk else 0)
        start += written
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][written:]
    if wait_for_disk and not UNTIL_ON_DISK:
        os.fsync(descriptor)
