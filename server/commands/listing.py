"""The command `proxskip-server list`."""

from __future__ import annotations

import json

import typer

from common.experiment.plugins import available
from common.experiment.shipped import shipped_experiments
from server.commands import options
from server.research.studies import names_of


def listing(as_json: options.Json = False) -> None:
    """List the experiments, algorithms, tasks and studies that are at hand."""
    at_hand = {
        "experiments": shipped_experiments(),
        "algorithms": available("strategies"),
        "tasks": available("common.tasks"),
        "studies": names_of(),
    }
    if as_json:
        typer.echo(json.dumps(at_hand, indent=2))
        return
    for kind, names in at_hand.items():
        typer.echo(f"{kind}: {', '.join(names)}")
