"""The command `proxskip-server doctor`."""

from __future__ import annotations

from pathlib import Path

from server.commands import options

RUNS = Path("runs")


def doctor(
    keys: options.KeysOption = None,
    listen: options.Listen = None,
    runs: options.Runs = RUNS,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Check this machine before a run: versions, device, disk, port, keys, and the runs that are here.

    A problem is exit code 1; warnings alone are 0.
    """
    from common.doctor.findings import examine, tell
    from server.doctor import CHECKS, ServerMachine

    server = ServerMachine(folder=runs, device=device, keys=keys, listen=listen)
    tell("proxskip-server", examine(server, CHECKS), as_json=as_json)
