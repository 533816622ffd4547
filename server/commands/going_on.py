"""The command that goes on with a run: what to type, exactly, with the options that the run was begun with."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import typer
from click.core import ParameterSource

PROGRAM = "proxskip-server"
LEFT_OUT = ("settings", "clients", "output", "resume", "go_on", "reach", "paper_bits")  # the folder knows, or no matter


def command_to_go_on(context: typer.Context, folder: Path, command: str = "") -> str:
    """Return what a user types to go on with the run in a folder."""
    name = command or context.info_name or ""
    words = [*_program(), name, "--resume", str(folder), *_options_given(context)]
    return shlex.join(words)


def _program() -> list[str]:
    """Return how this program is called from where the user is: as it was, if its name alone would not do."""
    called = Path(sys.argv[0])
    found = shutil.which(PROGRAM)
    if called.name == "__main__.py":
        return [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "server"]
    return [PROGRAM] if found and called.exists() and Path(found).samefile(called) else [str(called)]


def _options_given(context: typer.Context) -> Iterator[str]:
    """Yield the options that were given, as they were meant."""
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in LEFT_OUT and isinstance(parameter, click.Option):
            value, option = context.params[name], parameter.opts[0]
            if parameter.is_flag:
                yield option
            else:
                for one in value if isinstance(value, (list, tuple)) else (value,):
                    yield from (option, str(one))
