"""The model that both sides have, given which another is shorter, and how each is sure that it is the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor
from zlib_ng import zlib_ng

from common.codec.bytestream import memory_of
from common.codec.places import entries_of
from common.rounds.state import RoundPlan
from common.vectors.entries import Entries

LONG = 1 << 16  # entries: to keep a dense model so long costs more than it tells; of float32 it tells nothing


@dataclass(frozen=True)
class Given:
    """A model by its entries, and the digest that a message names it by."""

    entries: Entries
    digest: int

    @classmethod
    def of(cls, model: Tensor) -> Given:
        """Return a model, for others to be given it."""
        entries = entries_of(model)
        return cls(entries, digest_of(entries))


def given_to_uploads(plan: RoundPlan, model: Tensor) -> Given | None:
    """Return the model that a round starts from, for its uploads; None of a dense one that is long, or for float32."""
    is_dense = 2 * np.count_nonzero(model.numpy(force=True) != 0) > len(model)  # floats themselves are counted slowly
    return None if is_dense and (plan.precision == "float32" or len(model) > LONG) else Given.of(model)


def digest_of(entries: Entries) -> int:
    """Return the CRC-32 of the places of all entries but +0.0, as int32, and then of their values; never 0."""
    assert entries.places is not None
    places = zlib_ng.crc32(memory_of(entries.places.astype("<i4", copy=False)))
    return zlib_ng.crc32(memory_of(entries.values.astype("<f4", copy=False)), places) or 1
