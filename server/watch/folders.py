"""Where there are runs under a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from server.runs.run_folder import EXPERIMENT, ROUNDS

DEEPEST = 5
MOST_FOLDERS = 20_000  # that are looked into: somebody may watch a whole disk


def run_folders(root: Path) -> dict[str, Path]:
    """Return all runs under a folder by their paths in it; a folder that is itself a run is one, by its name."""
    if _is_run(_names_in(root)):
        return {_text(Path(root.resolve().name)): root}
    return {_text(path.relative_to(root)): path for path in _found(root)}


def _text(path: Path) -> str:
    """Return a path as a text that can be sent: a name may be any bytes."""
    return os.fsencode(path.as_posix()).decode("utf-8", "replace")


def _found(root: Path) -> Iterator[Path]:
    folders = [(root, 0)]
    for looked_into in range(MOST_FOLDERS):
        if looked_into == len(folders):
            return
        folder, depth = folders[looked_into]
        inside = _names_in(folder)
        if _is_run(inside):
            yield folder
        elif depth < DEEPEST:
            folders.extend((folder / name, depth + 1) for name, is_folder in sorted(inside.items()) if is_folder)


def _is_run(inside: dict[str, bool]) -> bool:
    return ROUNDS in inside and EXPERIMENT in inside


def _names_in(folder: Path) -> dict[str, bool]:
    """Return what is in a folder, and which of it are folders; nothing of one that is not ours to read."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except OSError:
        return {}
