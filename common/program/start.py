"""What the two programs have in common."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from common.errors import UserError
from common.messages.flower import APP_VERSION, quiet_flower
from common.program.malloc import keep_freed_memory
from common.say import one_line

LONGEST_ERROR = 2_000  # characters

UNEXPECTED = getattr(os, "EX_SOFTWARE", 70)  # the exit code after an error that nobody has thought of


def run_program(app: Callable[[], object]) -> None:
    """Run a program; an error that the user can mend is one line and exit code 2, any other says all it can for us."""
    quiet_flower()
    keep_freed_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our signs is no reason to end
    try:
        app()
    except UserError as error:
        if error.is_of_own_code and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        sys.stderr.write(f"error: {one_line(str(error), LONGEST_ERROR)}\n")  # which may be a peer's words
        sys.exit(2)
    except Exception as error:
        traceback.print_exc()
        what = one_line(str(error), LONGEST_ERROR)
        sys.stderr.write(f"error: an unexpected {type(error).__name__}, which is a fault of this program: {what}\n")
        sys.exit(UNEXPECTED)


def version_option(program: str) -> Any:  # noqa: ANN401 - as typer declares its options
    """Return the option --version of a program."""

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{program} {APP_VERSION}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="show the version and exit")
