"""What the head of a model's file tells, without its numbers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.runs.run_folder import MODEL
from server.watch.growing_file import open_regular
from server.watch.loose import count, json_object, number, table, text

LONGEST_HEAD_BYTES = 1 << 24
LENGTH_BYTES = 8  # how a safetensors file begins: the length of its head
MOST_COEFFICIENTS = 1000


@dataclass(frozen=True)
class ModelHead:
    """The final model of a run, as far as it is described."""

    weights: int | None = None
    coefficients: list[dict[str, Any]] = field(default_factory=list)  # name and value, the largest first

    @classmethod
    def read(cls, folder: Path) -> ModelHead:
        """Read the head of model.safetensors; nothing is known of one that cannot be read."""
        try:
            with open_regular(folder / MODEL) as file:
                length = int.from_bytes(file.read(LENGTH_BYTES), "little")
                head = json_object(file.read(length)) if length <= LONGEST_HEAD_BYTES else {}
        except OSError:
            return cls()
        shapes = [table(one).get("shape") for name, one in head.items() if name != "__metadata__"]
        return cls(_weights(shapes), _coefficients(table(head.get("__metadata__")).get("coefficients")))


def _weights(shapes: list[Any]) -> int | None:
    try:
        return count(sum(math.prod(shape) for shape in shapes)) or None
    except (TypeError, ValueError, OverflowError):
        return None


def _coefficients(written: object) -> list[dict[str, Any]]:
    try:
        found = json.loads(written) if isinstance(written, str) else []
    except (ValueError, RecursionError):
        return []
    rows = [table(one) for one in found[:MOST_COEFFICIENTS]] if isinstance(found, list) else []
    return [{"name": text(row.get("name")), "value": number(row.get("value"))} for row in rows]
