"""The command `proxskip-server reproduce`."""

from __future__ import annotations

from pathlib import Path

import typer

from server.commands import options
from server.research.studies import names_of


def reproduce(
    name: options.StudyName,
    quick: options.Quick = False,
    output: options.Output = None,
    data: options.Data = None,
    any_code: options.AnyCode = False,
) -> None:
    """Run what a table or figure of the paper needs, and write it with the paper's numbers beside ours.

    NAME is one of the studies (see `proxskip-server list`), or `all`. Runs that are done are kept in the output folder,
    so that the same command goes on where it was interrupted; those that another version of the code has made are done
    again.
    """
    names_of(name)  # refused at once where there is no such study

    from server.research import reproduce as studying
    from server.runs.figure import require_figures

    require_figures()
    folder = output or Path("runs") / ("reproduced-quick" if quick else "reproduced")
    studying.reproduce_studies(
        studying.studies(name), quick=quick, data=data, folder=folder, say=typer.echo, any_code=any_code
    )
