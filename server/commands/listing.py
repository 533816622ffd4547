"""The command `proxskip-server list`."""

from __future__ import annotations

import typer

from common.experiment.plugins import available
from common.experiment.shipped import shipped_experiments
from server.research.studies import names_of


def listing() -> None:
    """List the experiments, algorithms, tasks and studies that are at hand."""
    for kind, names in (
        ("experiments", shipped_experiments()),
        ("algorithms", available("strategies")),
        ("tasks", available("common.tasks")),
        ("studies", names_of()),
    ):
        typer.echo(f"{kind}: {', '.join(names)}")
