"""A vector by its entries: what a decoder gives, and what a sum takes, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Places = NDArray[np.int32]
Block = tuple[slice | Places, NDArray[np.float32]]  # where, and what is there

BLOCK = 1 << 16  # entries that are dealt with at a time: they stay in the cache


@dataclass(frozen=True, kw_only=True, slots=True)
class Entries:
    """A vector by its entries: those at some places, all others being zero, or all."""

    size: int
    places: Places | None  # increasing; None: all
    values: NDArray[np.float32]

    def blocks(self) -> Iterator[Block]:
        """Yield the entries part by part."""
        for start in range(0, self.values.size, BLOCK):
            here = slice(start, start + BLOCK)
            yield here if self.places is None else self.places[here], self.values[here]

    def parts(self, width: int) -> Iterator[NDArray[np.float32]]:
        """Yield all of the vector, zeros included, in parts of a width."""
        for start in range(0, self.size, width):
            end = min(start + width, self.size)
            if self.places is None:
                yield self.values[start:end]
                continue
            part = np.zeros(end - start, np.float32)
            first, last = np.searchsorted(self.places, (start, end))
            part[self.places[first:last] - start] = self.values[first:last]
            yield part

    def dense(self) -> Tensor:
        """Return the vector; where all entries are given, it shares their memory."""
        if self.places is None:
            return torch.from_numpy(self.values)
        vector = np.zeros(self.size, np.float32)
        vector[self.places] = self.values
        return torch.from_numpy(vector)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """A vector whose entries are all given, read block by block whenever it is wanted."""

    size: int
    read: Callable[[], Iterator[NDArray[np.float32]]]  # may find at any block that it cannot be read

    def blocks(self) -> Iterator[Block]:
        """Yield the entries part by part."""
        start = 0
        for values in self.read():
            yield slice(start, start + values.size), values
            start += values.size

    def parts(self, width: int) -> Iterator[NDArray[np.float32]]:
        """Yield the vector in parts of a width."""
        waiting = np.empty(0, np.float32)
        for values in self.read():
            waiting = np.concatenate((waiting, values))
            while waiting.size >= width:
                yield waiting[:width]
                waiting = waiting[width:]
        if waiting.size:
            yield waiting

    def entries(self) -> Entries:
        """Return the vector in memory."""
        return Entries(size=self.size, places=None, values=joined(self.read(), self.size))

    def dense(self) -> Tensor:
        """Return the vector."""
        return self.entries().dense()


def joined(blocks: Iterable[NDArray[np.float32]], size: int) -> NDArray[np.float32]:
    """Return blocks one after the other, of which no second copy is made."""
    values, start = np.empty(size, np.float32), 0
    for block in blocks:
        values[start : start + block.size] = block
        start += block.size
    return values
