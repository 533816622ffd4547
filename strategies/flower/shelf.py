"""Vectors that are not read for a while, in files: while uploads come in, nobody looks at the model."""

from __future__ import annotations

import mmap
from dataclasses import replace
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from common.codec.bytestream import in_memory
from common.codec.given import Given
from common.rounds.state import ServerState
from common.storage.spool import PIECE_BYTES, spooled


class Shelf:
    """Keeps large vectors in temporary files that are mapped into memory: they take none until they are read."""

    def __init__(self) -> None:
        self._maps: WeakSet[mmap.mmap] = WeakSet()

    def keep(self, vector: Tensor) -> Tensor:
        """Return the same vector on the shelf; a short one, or one that is not on the CPU, stays where it is."""
        if vector.nbytes <= PIECE_BYTES or vector.device.type != "cpu":
            return vector
        values = vector.numpy(force=True)
        memory = spooled(in_memory(values), values.nbytes).mapped()
        self._maps.add(memory)
        return torch.from_numpy(np.frombuffer(memory, values.dtype))

    def keep_state(self, state: ServerState) -> ServerState:
        """Return the same state with its vectors on the shelf."""
        control = None if state.control is None else self.keep(state.control)
        return replace(state, model=self.keep(state.model), control=control)

    def keep_given(self, given: Given | None) -> Given | None:
        """Return the same model with its entries on the shelf."""
        if given is None or given.entries.places is None:
            return given
        places, values = (
            self.keep(torch.from_numpy(one)).numpy() for one in (given.entries.places, given.entries.values)
        )
        return replace(given, entries=replace(given.entries, places=places, values=values))

    def let_go(self) -> None:
        """Give back the memory of what was read; it comes back from the files when it is read again."""
        for memory in self._maps:
            memory.madvise(mmap.MADV_DONTNEED)  # of a file nothing is lost by that
