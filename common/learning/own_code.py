"""Code of a user's own in a task: what goes wrong there is one line that says where."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from common.errors import UserError

_OURS = [Path(__file__).parents[2] / room for room in ("common", "client", "server", "strategies")]


class OwnCodeError(UserError):
    """A user's own code has failed: its cause is for the log, and none of it for the other end."""

    is_of_own_code = True

    def __init__(self, task: object, place: str, complaint: str) -> None:
        name = type(task).__qualname__
        super().__init__(
            f"{name}.{place}: {complaint}", public=f"its {name}.{place} does not work there; its log says why"
        )


@contextmanager
def own_code(task: object, place: str) -> Iterator[None]:
    """Run a method of a task, or what it has made."""
    try:
        yield
    except Exception as error:  # whatever a user's code may raise
        if isinstance(error, UserError) or is_out_of_memory(error):
            raise
        raise OwnCodeError(task, place, f"{_last_line(error)}{_where(error)}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether there was not enough memory, which is nobody's mistake."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def _last_line(error: Exception) -> str:
    """Return what an error says; of one that a worker process has passed on, the end of its traceback."""
    lines = str(error).strip().splitlines()
    is_passed_on = len(lines) > 1 and lines[0].startswith("Caught ")
    return lines[-1] if is_passed_on else f"{type(error).__name__}: {lines[0] if lines else 'it says no more'}"


def _where(error: Exception) -> str:
    """Return the innermost line outside of installed packages."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is ours, above
    own = [frame for frame in frames if not _is_installed(Path(frame.filename))]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _is_installed(file: Path) -> bool:
    """Say whether a file is of a package, this one among them: whose task it is has not written it."""
    return "site-packages" in file.parts or any(file.is_relative_to(room) for room in _OURS)
