"""The program `proxskip-server`."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # as for the installed program: a file where we are started may bear a library's name

import signal
from functools import partial
from typing import Annotated

import typer

from common.program.start import run_program, version_option
from server.commands import keys
from server.commands.compare import compare
from server.commands.listing import listing
from server.commands.local import local
from server.commands.report import report
from server.commands.reproduce import reproduce
from server.commands.run import run
from server.commands.simulate import simulate
from server.commands.tune import tune
from server.deploy.guard import Guard

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def proxskip_server(version: Annotated[bool, version_option("proxskip-server")] = False) -> None:
    """Accelerated sparse-to-sparse federated learning."""


for command in (simulate, compare, run, local, report, tune, reproduce):
    app.command()(command)
app.command("list")(listing)
app.add_typer(keys.app, name="keys")


def _leave(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def main() -> None:
    """Run the program."""
    signal.signal(signal.SIGTERM, _leave)  # as if it had been Ctrl-C: clients are let go, files are closed
    run_program(partial(app, obj=Guard()))


if __name__ == "__main__":
    main()
