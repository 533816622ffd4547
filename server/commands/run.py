"""The command `proxskip-server run`."""

from __future__ import annotations

from pathlib import Path

import typer

from common.errors import UserError
from common.program.address import host_and_port
from server.commands import options
from server.commands.console import Terminal
from server.commands.going_on import command_to_go_on
from server.commands.guarded import guarded
from server.commands.which_run import WhichRun
from server.keys.folder import DEFAULT_PORT, Keys
from server.runs.run_folder import RunFolder
from server.tracking.tracker import require_trackers
from strategies.flower.terms import Terms

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@options.with_terms
def run(
    context: typer.Context,
    experiment: options.ExperimentOrResume = None,
    keys: options.KeysOption = None,
    listen: options.Listen = None,
    clients: options.Clients = None,
    insecure: options.Insecure = False,
    trust_network: options.TrustNetwork = False,
    settings: options.Settings = None,
    output: options.Output = None,
    data: options.Data = None,
    resume: options.Resume = None,
    track: options.Track = None,
    go_on: options.GoOn = False,
    watch: options.Watch = False,
    *,
    terms: Terms,
) -> None:
    """Wait for the clients of an experiment, run it with them, and write the results.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file. After a crash, --resume RUN_DIR
    goes on where the run was, and ends as if nothing had happened.
    """
    terminal = Terminal()
    require_trackers(track)
    if go_on:
        output, resume = _where_to_go_on(output, resume)
    all_settings = options.with_clients(settings, clients)
    which = WhichRun(experiment=experiment, settings=all_settings, output=output, resume=resume)
    address, opened = _door(keys, listen, insecure, trust_network)
    terminal.say(f"preparing to run {which}")
    if opened is None:
        terminal.say("warning: --insecure: whoever can reach this port can join, and read and change everything")
    guard = guarded(context, terminal.say)

    import torch

    from server.commands.audience import Audience
    from server.commands.deployed import run_deployed
    from server.link.hub import Hub

    with (
        which.opened(guard, terminal.say, simulated=False) as begun,
        Hub(address, opened, begun.say) as hub,
    ):
        problem = begun.experiment.load_for_server(data, torch.device("cpu"))
        begun.begin(problem.data_name)
        terminal.say(f"listening on {hub.address}; the run is in {begun.folder.path}")
        command = command_to_go_on(context, begun.folder.path)
        audience = Audience(terminal=terminal, command=command, trackers=track or [], watch=watch)
        run_deployed(begun, problem, terms, hub, audience)


def _where_to_go_on(output: Path | None, resume: Path | None) -> tuple[Path | None, Path | None]:
    """Return --output and --resume for a run that is to be in one folder, begun or not."""
    if output is None or resume is not None:
        raise UserError("--go-on goes on with the run in --output DIR: say which, and leave out --resume")
    return (None, output) if RunFolder(output).is_begun else (output, None)


def _door(keys: Path | None, listen: str | None, insecure: bool, trust_network: bool) -> tuple[str, Keys | None]:
    """Return where to listen, and the keys of who may join; none where the user wants to go without, and may."""
    if insecure:
        if keys is not None:
            raise UserError("--insecure goes without --keys; say one or the other")
        address = listen or f"127.0.0.1:{DEFAULT_PORT}"
        if host_and_port(address)[0] not in LOOPBACK and not trust_network:
            raise UserError(
                f"--insecure --listen {listen}: without TLS only loopback is safe (127.0.0.1:PORT); "
                "give --keys, or say --trust-network"
            )
        return address, None
    if keys is None:
        raise UserError(
            "give --keys DIR (made by `proxskip-server keys init DIR --host HOST`), "
            "or --insecure for a trial on this machine"
        )
    opened = Keys.open(keys)
    if not opened.clients():
        raise UserError(f"--keys {keys}: nobody could join; add clients: proxskip-server keys add NAME --keys {keys}")
    return listen or opened.listen, opened
