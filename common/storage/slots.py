"""Tensors that are replaced again and again, safe at any moment: two files, of which the older one is written over.

A crash in the middle of that leaves the newer one, which nobody has touched. To write where there is room already takes
a fifth of what a new file takes that is put in the place of the old one: no name changes, and no size.

A file is a header (when it was written, how long the rest is), and at byte 512 tensors in the format of safetensors.
The header is written when the rest is on the disk: until then it speaks of what was there before.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from common.errors import UserError
from common.storage.disk import writing

HEADER = struct.Struct("<8sQQI")  # the magic, the number of the writing, the length of the rest, CRC-32 of these three
MAGIC = b"proxskip"
BODY = 512  # where it begins: a header never shares a sector with it
GROWTH = 1.25  # so that a body that grows a little does not make its file grow each time
KINDS = {torch.float32: "F32", torch.float64: "F64", torch.uint8: "U8"}

Saved = tuple[dict[str, Tensor], dict[str, str]]  # tensors, metadata


class Slots:
    """Two files in a folder, NAME.0 and NAME.1."""

    def __init__(self, path: Path, what: str) -> None:
        self.files = [path.with_name(f"{path.name}.{place}") for place in range(2)]
        self._what = what
        self._numbers: list[int] | None = None  # of the writings that are in the files; 0: none

    def write(
        self, tensors: Mapping[str, Tensor | None], metadata: dict[str, str], *, wait_for_disk: bool = True
    ) -> None:
        """Replace what is saved; without waiting for the disk it is only safe as long as the power does not fail."""
        if self._numbers is None:
            self._numbers = [_number(file) for file in self.files]
        place = self._numbers.index(min(self._numbers))
        number, file = max(self._numbers) + 1, self.files[place]
        parts = _in_parts({name: tensor for name, tensor in tensors.items() if tensor is not None}, metadata)
        size = sum(len(part) for part in parts)
        self._numbers[place] = 0  # should this fail
        with writing(file), _opened(file, BODY + size) as descriptor:
            _write(descriptor, parts, BODY)
            if wait_for_disk:
                _sync(descriptor)
            _write(descriptor, [_header(number, size)], 0)
            if wait_for_disk:
                _sync(descriptor)
        self._numbers[place] = number

    def read(self) -> Saved | None:
        """Return what was saved last; None where nothing was."""
        numbers = [_number(file) for file in self.files]
        if not max(numbers):
            if damaged := [file for file in self.files if file.exists() and file.stat().st_size]:
                raise UserError(f"{damaged[0]} is not {self._what}; move it away to start afresh")
            return None
        file = self.files[numbers.index(max(numbers))]
        try:
            data = file.read_bytes()
            body = data[BODY : BODY + HEADER.unpack_from(data)[2]]
            (length,) = struct.unpack_from("<Q", body)
            return load(body), json.loads(body[8 : 8 + length]).get("__metadata__", {})
        except (OSError, SafetensorError, ValueError, struct.error) as error:
            raise UserError(f"{file} is not {self._what}: {error}; move it away to start afresh") from None


def _number(file: Path) -> int:
    """Return the number of the writing in a file; 0 where there is none."""
    try:
        with file.open("rb") as opened:
            data = opened.read(HEADER.size)
            size = os.fstat(opened.fileno()).st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    if len(data) < HEADER.size:
        return 0
    magic, number, length, checksum = HEADER.unpack(data)
    is_whole = magic == MAGIC and zlib.crc32(data[:-4]) == checksum and BODY + length <= size
    return int(number) if is_whole else 0


def _header(number: int, size: int) -> memoryview:
    data = HEADER.pack(MAGIC, number, size, 0)[:-4]
    return memoryview(data + struct.pack("<I", zlib.crc32(data)))


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
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


@contextmanager
def _opened(file: Path, size: int) -> Iterator[int]:
    """Open a file in which there is room for so many bytes."""
    is_new = not file.exists()
    if is_new:
        file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_size < size:
            _reserve(descriptor, int(GROWTH * size))
        if is_new:
            _sync_folder(file.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.truncate(descriptor, size)


def _write(descriptor: int, parts: list[memoryview], start: int) -> None:
    for part in parts:
        rest = part.cast("B")
        while rest:
            written = os.pwrite(descriptor, rest, start)
            rest, start = rest[written:], start + written


def _sync(descriptor: int) -> None:
    getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has the latter only


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
