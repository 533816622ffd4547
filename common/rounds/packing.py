"""Many clients' numbers in few bytes: columns instead of rows, deflated, as text that fits into a line of JSON."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

LARGEST_BYTES = 1 << 26  # unpacked: a line of a thousand clients has a thousandth of it
NAME = "name"
SEPARATOR = "."  # between a section of a row and what is in it


def pack(names: Iterable[str], columns: Mapping[str, list[Any]]) -> str:
    """Return columns of rows with these names as a text; "section.part" is a column of a section that rows have."""
    known = {NAME: list(names), **columns}
    return b64encode(zlib.compress(json.dumps(known, allow_nan=False, separators=(",", ":")).encode())).decode()


def unpack(text: str) -> dict[str, dict[str, Any]]:
    """Read what `pack` wrote; a ValueError where it did not."""
    inflater = zlib.decompressobj()
    try:
        columns = json.loads(inflater.decompress(b64decode(text, validate=True), LARGEST_BYTES))
        names = columns.pop(NAME)
        if inflater.unconsumed_tail or any(len(column) != len(names) for column in columns.values()):
            raise ValueError("it has columns of different lengths, or too much of everything")
        return rows_of(names, columns)
    except (zlib.error, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"these are no packed clients: {error!r}") from None


def rows_of(names: Iterable[str], columns: Mapping[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Return rows by name, each with what is known of it."""
    rows: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, column in columns.items():
        _fill(rows, key, column)
    return rows


def _fill(rows: Mapping[str, dict[str, Any]], key: str, column: list[Any]) -> None:
    section, _, part = key.partition(SEPARATOR)
    for row, value in zip(rows.values(), column, strict=True):
        if value is not None:
            inside = row.setdefault(section, {}) if part else row
            inside[part or section] = value
