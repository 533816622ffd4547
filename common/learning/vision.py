"""torchvision, importable also where its compiled operators are not.

The registry's torchvision wheel is built for CUDA. Beside a CPU-only torch its library of operators does not load, and
its import fails while it registers shapes for them. With the two operators' signatures declared beforehand the import
succeeds, and all we use works: models, data sets, transforms. Where the pair matches nothing is declared.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import torch

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _operators_load() -> bool:
    """Try to load torchvision's compiled library, as its own import will."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return True  # not installed: its import says so best
    folder = Path(found.origin).parent
    libraries = [*folder.glob("_C*.so"), *folder.glob("_C*.pyd")]
    try:
        for library in libraries:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return bool(libraries)


def _declared() -> torch.library.Library | None:
    if _operators_load():
        return None
    declarations = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in _OPERATORS:
        declarations.define(operator + _SIGNATURE)  # type: ignore[no-untyped-call]
    return declarations


_declarations = _declared()  # they last as long as this object
torchvision: Any = importlib.import_module("torchvision")
