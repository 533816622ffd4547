"""Which part of a public data set a client holds."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from common.errors import UserError


@dataclass(frozen=True)
class Part:
    """One of the parts into which a public data set is dealt: `I/N`, counted from 0."""

    index: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise UserError(f"--partition {self.index}/{self.of}: parts are numbered from 0 to {self.of - 1}")

    @classmethod
    def read(cls, text: str) -> Part:
        """Read `I/N`."""
        index, _, of = text.partition("/")
        if not (index.isdecimal() and of.isdecimal()):
            raise UserError(f"--partition {text}: expected I/N, such as 0/4 for the first of four parts")
        return cls(int(index), int(of))


def default_name(part: Part | None) -> str:
    """Return a client's name where nobody gave it one."""
    return socket.gethostname() if part is None else f"client-{part.index}"


def parts_of(partition: str | None, partitions: str | None) -> list[Part | None]:
    """Return the part of each client in this process; None for one that has data of its own."""
    if partition is not None and partitions is not None:
        raise UserError("say --partition I/N for one client or --partitions I-J/N for several, not both")
    if partitions is None:
        return [Part.read(partition) if partition is not None else None]
    first_last, _, of = partitions.partition("/")
    first, _, last = first_last.partition("-")
    if not (first.isdecimal() and last.isdecimal() and of.isdecimal() and int(first) <= int(last)):
        raise UserError(f"--partitions {partitions}: expected I-J/N, such as 0-9/100")
    return [Part(index, int(of)) for index in range(int(first), int(last) + 1)]
