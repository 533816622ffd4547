"""What a control variate has been through, as both sides know it, each by itself.

A control is what counted rounds and re-centrings have made of it. So a client's is the one that the server counts on if
it has been through the same, in the same order: with the upload that was counted, and the shift that was sent. Who puts
back an older copy of a state folder, or of a journal, has another history, although the last round may be the same.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from typing import Annotated

from torch import Tensor

from common.ranges import Range

# The digest before, what happened, its number, and a digest or checksum of what belongs to it.
EVENT = struct.Struct("<QBIQ")
ROUND, RECENTRING = 0, 1
DIGEST_BYTES = 8

Number = Annotated[int, Range(at_least=0, below=2**32)]


def _digest_of(data: bytes | memoryview) -> int:
    """Return the first 8 bytes, little-endian, of a SHA-256."""
    return int.from_bytes(hashlib.sha256(data).digest()[:DIGEST_BYTES], "little")


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The last round and the last re-centring of a control, and a digest of all of them; of a new one, nothing."""

    counted: Number = 0  # the last round in which the client was counted; 0 = never
    recentred: Number = 0  # of the last re-centring that was taken from its control; 0 = none
    digest: Annotated[int, Range(at_least=0, below=2**64)] = 0

    def after_round(self, number: int, checksum: int) -> History:
        """Return the history with one more counted round; the upload is known by its checksum."""
        return replace(self, counted=number, digest=self._digest_with(ROUND, number, checksum))

    def after_recentring(self, number: int, shift: Tensor) -> History:
        """Return the history with one more re-centring."""
        values = (shift + 0.0).numpy().astype("<f4")  # + 0.0: a codec need not keep the sign of a zero
        digest = self._digest_with(RECENTRING, number, _digest_of(values.data.cast("B")))
        return replace(self, recentred=number, digest=digest)

    def __str__(self) -> str:
        if not self.counted:
            return "nothing of it"
        return f"round {self.counted} as its last" + (f", re-centring {self.recentred}" if self.recentred else "")

    def _digest_with(self, event: int, number: int, belongs_to_it: int) -> int:
        return _digest_of(EVENT.pack(self.digest, event, number, belongs_to_it))
