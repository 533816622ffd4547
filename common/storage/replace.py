"""Small files, read whole and replaced at once; secret ones are for their owner alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from common.storage.disk import sync, writing

LARGEST_BYTES = 1 << 20
OTHERS = 0o077  # what a mode says of everybody but the owner


def read_small_file(path: Path) -> bytes:
    """Return what is in a file; of one that is too long, or a device without an end, an OSError."""
    with path.open("rb") as file:
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def replace_file(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Replace a file; of a secret nobody else on this machine may read anything, not even for a moment."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if secret else 0o777)
        draft = path.with_name(f"{path.name}.new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o666)
        with open(descriptor, "wb") as file:  # noqa: PTH123
            file.write(content)
        sync(draft)  # else a failure of the power may leave a name without content
        draft.replace(path)
