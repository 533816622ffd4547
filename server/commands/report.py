"""The command `proxskip-server report`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

from server.commands import options
from server.commands.console import Terminal
from server.runs.run_folder import RunFolder


def report(
    runs: options.RunPaths,
    output: options.Figure = Path("comparison.png"),
    reach: options.Reach = None,
    paper_bits: options.PaperBits = False,
    as_json: options.Json = False,
) -> None:
    """Put finished runs side by side: a table, what it says, and a figure of the metric against uploaded bytes.

    With --json the numbers of the table, and no figure.
    """
    from server.runs import report as reporting

    if not as_json:
        reporting.require_figures()
    names = [path.name for path in runs]
    folders = {path.name if names.count(path.name) == 1 else str(path): RunFolder(path) for path in runs}
    records = {name: folder.rounds() for name, folder in folders.items()}
    metric = reporting.common_metric(records)
    as_sent = reporting.all_encoded(records) and not paper_bits
    densities = {name: folder.density() for name, folder in folders.items()}
    rows = reporting.compared(records, metric, reach or [], densities=densities, as_sent=as_sent)
    if as_json:
        numbers = [asdict(row) for row in rows]
        typer.echo(json.dumps({"metric": metric, "as_sent": as_sent, "runs": numbers}, indent=2))
        return
    terminal = Terminal()
    terminal.print(reporting.comparison(rows, metric, as_sent=as_sent))
    reporting.draw_comparison(records, metric, as_sent=as_sent, title=", ".join(records), path=output)
    terminal.say(f"figure: {output}")
