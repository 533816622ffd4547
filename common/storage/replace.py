"""Small files that are replaced at once; secret ones are for their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

from common.storage.disk import writing


def replace_file(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Replace a file; of a secret nobody else on this machine may read anything, not even for a moment."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if secret else 0o777)
        draft = path.with_name(f"{path.name}.new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o666)
        with open(descriptor, "wb") as file:  # noqa: PTH123
            file.write(content)
        draft.replace(path)
