"""Files that a command makes, and that must not take the place of another."""

from __future__ import annotations

from pathlib import Path

from common.errors import UserError


def refuse_existing(file: Path | None) -> None:
    """Fail before any work is done where there is such a file already."""
    if file is not None and file.exists():
        raise UserError(f"{file} is there already; remove it, or name another file with --output")
