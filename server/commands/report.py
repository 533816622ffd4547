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
    paper_bits: options.PaperBits = False,
    as_json: options.Json = False,
) -> None:
    """Put finished runs side by side: a table, and a figure of the metric against uploaded bytes.

    With --json the numbers of the table, and no figure.
    """
    from server.runs.report import (
        all_encoded,
        common_metric,
        compared,
        comparison_table,
        draw_comparison,
        require_figures,
    )

    if not as_json:
        require_figures()
    names = [path.name for path in runs]
    records = {path.name if names.count(path.name) == 1 else str(path): RunFolder(path).rounds() for path in runs}
    metric = common_metric(records)
    as_sent = all_encoded(records) and not paper_bits
    if as_json:
        rows = [asdict(row) for row in compared(records, metric, as_sent=as_sent)]
        typer.echo(json.dumps({"metric": metric, "as_sent": as_sent, "runs": rows}, indent=2))
        return
    terminal = Terminal()
    terminal.print(comparison_table(records, metric, as_sent=as_sent))
    draw_comparison(records, metric, as_sent=as_sent, title=", ".join(records), path=output)
    terminal.say(f"figure: {output}")
