"""The command `proxskip-server report`."""

from __future__ import annotations

from pathlib import Path

from server.commands import options
from server.commands.console import Terminal
from server.runs.run_folder import RunFolder


def report(
    runs: options.RunPaths, output: options.ReportFile = Path("comparison.png"), paper_bits: options.PaperBits = False
) -> None:
    """Put runs side by side: a table, and the metric against what a client has uploaded.

    FILE is a figure, or with the ending .html one page with all there is to see of the runs.
    """
    from common.storage.disk import writing
    from common.storage.replace import replace_file
    from server.runs.report import common_metric, comparison_table, count_for, draw_comparison, require_figures
    from server.watch.comparison import compare
    from server.watch.report import report_of
    from server.watch.run_view import RunView

    is_page = output.suffix == ".html"
    if not is_page:
        require_figures()
    terminal = Terminal()
    names = [path.name for path in runs]
    folders = {path.name if names.count(path.name) == 1 else str(path): path for path in runs}
    records = {name: RunFolder(path).rounds() for name, path in folders.items()}
    metric, count = common_metric(records), count_for(records, paper_bits=paper_bits)
    terminal.print(comparison_table(records, metric, count))
    views = [RunView.read(name, path) for name, path in folders.items()]
    if is_page:
        replace_file(output, report_of(views).encode())
    else:
        with writing(output):
            draw_comparison(records, metric, count, title=str(compare(views)["title"]), path=output)
    terminal.say(f"{'report' if is_page else 'figure'}: {output}")
