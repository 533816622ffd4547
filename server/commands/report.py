"""The command `proxskip-server report`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from server.commands import options
from server.commands.console import Terminal
from server.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from server.runs.report import Count, Records


def report(
    runs: options.RunPaths,
    output: options.ReportFile = Path("comparison.png"),
    reach: options.Reach = None,
    paper_bits: options.PaperBits = False,
    as_json: options.Json = False,
) -> None:
    """Put runs side by side: a table, what it says, and the metric against what a client has uploaded.

    FILE is a figure, or with the ending .html one page with all there is to see of the runs. With --json the numbers of
    the table, and no file.
    """
    from server.runs.figure import require_figures
    from server.runs.report import common_metric, compared, comparison, count_for

    is_page = output.suffix == ".html"
    if not (is_page or as_json):
        require_figures()
    names = [path.name for path in runs]
    folders = {path.name if names.count(path.name) == 1 else str(path): path for path in runs}
    records = {name: RunFolder(path).rounds() for name, path in folders.items()}
    metric, count = common_metric(records), count_for(records, paper_bits=paper_bits)
    densities = {name: RunFolder(path).density() for name, path in folders.items()}
    rows = compared(records, metric, count, reach or [], densities=densities)
    if as_json:
        told = {"metric": metric, "as_sent": count.as_sent, "runs": [asdict(row) for row in rows]}
        typer.echo(json.dumps(told, indent=2))
        return
    terminal = Terminal()
    terminal.print(comparison(rows, metric, count))
    if is_page:
        _write_page(folders, output)
    else:
        _draw(folders, records, metric, count, output)
    terminal.say(f"{'report' if is_page else 'figure'}: {output}")


def _write_page(folders: Mapping[str, Path], output: Path) -> None:
    from common.storage.replace import replace_file
    from server.watch.report import report_of
    from server.watch.run_view import RunView

    replace_file(output, report_of([RunView.read(name, path) for name, path in folders.items()]).encode())


def _draw(folders: Mapping[str, Path], records: Mapping[str, Records], metric: str, count: Count, output: Path) -> None:
    from common.storage.disk import writing
    from server.runs.figure import draw_comparison
    from server.watch.comparison import compare
    from server.watch.run_view import RunView

    title = str(compare([RunView.read(name, path) for name, path in folders.items()])["title"])
    with writing(output):
        draw_comparison(records, metric, count, title=title, path=output)
