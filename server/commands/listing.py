"""The command `proxskip-server list`."""

from __future__ import annotations

import typer

from common.experiment.plugins import available
from common.experiment.shipped import shipped_experiments


def listing() -> None:
    """List the experiments, algorithms, tasks and studies that are at hand."""
    studies = [name.replace("_", "-") for name in available("server.research.studies")]
    for kind, names in (
        ("experiments", shipped_experiments()),
        ("algorithms", available("strategies")),
        ("tasks", available("common.tasks")),
        ("studies", studies),
    ):
        typer.echo(f"{kind}: {', '.join(names)}")
