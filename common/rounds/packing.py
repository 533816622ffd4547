"""Many clients' numbers in few bytes: columns instead of rows, deflated, as text that fits into a line of JSON."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

LARGEST_BYTES = 1 << 26  # unpacked: a line of a thousand clients has a thousandth of it
NAME = "name"
SEPARATOR = "."  # between a section of a row and what is in it

Row = Mapping[str, Any]


def pack(rows: Mapping[str, Row]) -> str:
    """Return rows by name as a text; a row may have sections of numbers, but no deeper ones."""
    flat = [{NAME: name, **_flat(row)} for name, row in rows.items()]
    keys = dict.fromkeys(key for row in flat for key in row)
    columns = {key: [row.get(key) for row in flat] for key in keys}
    return b64encode(zlib.compress(json.dumps(columns, allow_nan=False, separators=(",", ":")).encode())).decode()


def unpack(text: str) -> dict[str, dict[str, Any]]:
    """Read what `pack` wrote; a ValueError where it did not."""
    inflater = zlib.decompressobj()
    try:
        columns = json.loads(inflater.decompress(b64decode(text, validate=True), LARGEST_BYTES))
        names = columns.pop(NAME)
        if inflater.unconsumed_tail or any(len(column) != len(names) for column in columns.values()):
            raise ValueError("it has columns of different lengths, or too much of everything")
        rows: dict[str, dict[str, Any]] = {name: {} for name in names}
        for key, column in columns.items():
            _fill(rows, key, column)
        return rows
    except (zlib.error, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"these are no packed clients: {error!r}") from None


def _flat(row: Row) -> dict[str, Any]:
    flat = {key: value for key, value in row.items() if not isinstance(value, Mapping)}
    sections = {key: value for key, value in row.items() if isinstance(value, Mapping)}
    return flat | {f"{key}{SEPARATOR}{part}": one for key, value in sections.items() for part, one in value.items()}


def _fill(rows: Mapping[str, dict[str, Any]], key: str, column: list[Any]) -> None:
    section, _, part = key.partition(SEPARATOR)
    for row, value in zip(rows.values(), column, strict=True):
        if value is not None:
            inside = row.setdefault(section, {}) if part else row
            inside[part or section] = value
