"""The command `proxskip-server watch`."""

from __future__ import annotations

from pathlib import Path

from server.commands import options
from server.commands.console import Terminal


def watch(
    runs: options.RunsFolder = Path("runs"),
    listen: options.WatchListen = None,
    leave_with_parent: options.WithParent = False,
) -> None:
    """Show runs in a browser, live ones too: who is waited for, the score, what is sent. It only reads.

    RUNS is a folder of runs, or one run. On another address than loopback the URL that is printed has a token in it.
    """
    from server.watch.serve import serve

    serve(runs, listen, Terminal().say, leave_with_parent=leave_with_parent)
