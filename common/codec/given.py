"""The model that both sides have, given which another is shorter, and how each is sure that it is the same."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from zlib_ng import zlib_ng

from common.codec.bytestream import memory_of
from common.codec.places import entries_of
from common.vectors.entries import Entries

LONG = 1 << 16  # entries: to keep a dense model so long costs more than it tells


@dataclass(frozen=True)
class Given:
    """A model by its entries, and the digest that a message names it by."""

    entries: Entries
    digest: int

    @classmethod
    def of(cls, model: Tensor) -> Given | None:
        """Return a model, for others to be given it; None of a long one that is dense: that tells too little."""
        entries = entries_of(model)
        if entries.size > LONG and 2 * entries.values.size > entries.size:
            return None
        return cls(entries, digest_of(entries))


def digest_of(entries: Entries) -> int:
    """Return the CRC-32 of the places of all entries but +0.0, as int32, and then of their values; never 0."""
    assert entries.places is not None
    places = zlib_ng.crc32(memory_of(entries.places.astype("<i4", copy=False)))
    return zlib_ng.crc32(memory_of(entries.values.astype("<f4", copy=False)), places) or 1
