"""What was rounded off, to be added the next time: so that roundings do not add up from round to round."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.storage.spool import PIECE_BYTES, Spool
from common.vectors.entries import BLOCK

_ITEM_BYTES = 4


class Remainder:
    """A float32 for each entry of a sum, written once, block by block; a long one is in a file, not in memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        in_memory = size * _ITEM_BYTES <= PIECE_BYTES
        self._bytes = bytearray(size * _ITEM_BYTES) if in_memory else Spool(size * _ITEM_BYTES, reserve=True)

    @classmethod
    def of(cls, values: Tensor) -> Remainder:
        """Return what a file has kept."""
        remainder = cls(len(values))
        for start in range(0, len(values), BLOCK):
            remainder.write(start, values[start : start + BLOCK].numpy())
        return remainder

    def read(self, start: int, end: int) -> NDArray[np.float64]:
        """Return a block."""
        data = self._bytes[start * _ITEM_BYTES : end * _ITEM_BYTES]
        return np.frombuffer(data, np.float32).astype(np.float64)

    def write(self, start: int, values: NDArray[Any]) -> None:
        """Put in a block."""
        data = values.astype(np.float32, copy=False).tobytes()
        if isinstance(self._bytes, Spool):
            self._bytes.write(start * _ITEM_BYTES, data)
        else:
            self._bytes[start * _ITEM_BYTES : start * _ITEM_BYTES + len(data)] = data

    def tensor(self) -> Tensor:
        """Return all of it, for a file."""
        memory = self._bytes.mapped() if isinstance(self._bytes, Spool) else self._bytes
        return torch.frombuffer(memory, dtype=torch.float32)
