"""Where experiments are: those that come with the program, and a user's own files."""

from __future__ import annotations

from pathlib import Path

from common.errors import PublicError, UserError
from common.experiment.plugins import nearest

FOLDER = Path(__file__).parent / "experiments"


def shipped_experiments() -> list[str]:
    """Return the names of the experiments that come with the program."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def experiment_path(name_or_path: str) -> Path:
    """Return the file of an experiment, by its path or as one of those that are shipped."""
    given = Path(name_or_path)
    try:
        if given.is_file():
            return given
    except (OSError, ValueError) as error:  # a name no file can have
        raise UserError(f"there is no experiment {name_or_path[:100]!r}: {error}") from None
    if given.suffix in (".yaml", ".yml") or given.name != name_or_path:
        raise UserError(f"there is no experiment file {given}")
    return shipped_path(name_or_path)


def shipped_path(name: str) -> Path:
    """Return the file of an experiment that is shipped, by its name."""
    known = shipped_experiments()
    if name not in known:
        raise PublicError(
            f"unknown experiment {name[:100]!r}; the nearest is {nearest(name, known)!r}; "
            f"known: {', '.join(known)}, or a YAML file (to clients goes what is in it, not its path)"
        )
    return FOLDER / f"{name}.yaml"
