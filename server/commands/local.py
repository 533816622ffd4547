"""The command `proxskip-server local`."""

from __future__ import annotations

from collections import Counter

import typer

from server.commands import options
from server.commands.console import Terminal
from server.commands.going_on import command_to_go_on
from server.commands.guarded import guarded
from server.commands.which_run import WhichRun
from server.tracking.tracker import require_trackers
from strategies.flower.terms import Terms


@options.with_terms
def local(
    context: typer.Context,
    experiment: options.ExperimentOrResume = None,
    clients: options.Clients = None,
    settings: options.Settings = None,
    output: options.Output = None,
    data: options.Data = None,
    devices: options.Devices = "auto",
    resume: options.Resume = None,
    watch: options.Watch = False,
    track: options.Track = None,
    *,
    terms: Terms,
) -> None:
    """Run a whole federation on this machine: the server, and a process for every client, over gRPC.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file. After a crash, --resume RUN_DIR
    goes on where the run was, and ends as if nothing had happened.
    """
    terminal = Terminal()
    require_trackers(track)
    all_settings = options.with_clients(settings, clients)
    which = WhichRun(experiment=experiment, settings=all_settings, output=output, resume=resume)
    terminal.say(f"preparing to run {which} on this machine")
    guard = guarded(context, terminal.say)

    import torch

    from common.program.device import deal_out, devices_here
    from server.commands.audience import Audience
    from server.commands.deployed import run_deployed
    from server.deploy.local_clients import arguments_of_clients, local_clients
    from server.link.hub import Hub

    with which.opened(guard, terminal.say, simulated=False) as run, Hub("127.0.0.1:0", say=run.say) as hub:
        dealt = deal_out(devices, run.experiment.clients, devices_here())
        problem = run.experiment.load_for_server(data, torch.device("cpu"))
        arguments = arguments_of_clients(run.experiment, data, dealt)
        run.begin(problem.data_name)
        own = run.folder.path / "clients"
        where = ", ".join(f"{count} on {device}" for device, count in Counter(dealt).items())
        terminal.say(f"starting {len(arguments)} client processes ({where}); their logs are in {own}")
        needed = terms.minimum_clients or len(arguments)
        command = command_to_go_on(context, run.folder.path)
        audience = Audience(terminal=terminal, command=command, trackers=track or [], watch=watch)
        with local_clients(hub.address, arguments, needed=needed, folder=own, say=run.say):
            run_deployed(run, problem, terms, hub, audience)
