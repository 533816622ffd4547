"""The command `proxskip-server simulate`."""

from __future__ import annotations

import typer

from server.commands import options
from server.commands.console import Terminal
from server.commands.going_on import command_to_go_on
from server.commands.guarded import guarded
from server.commands.which_run import WhichRun
from server.tracking.tracker import require_trackers


def simulate(
    context: typer.Context,
    experiment: options.ExperimentOrResume = None,
    settings: options.Settings = None,
    output: options.Output = None,
    data: options.Data = None,
    device: options.Device = "auto",
    resume: options.Resume = None,
    watch: options.Watch = False,
    track: options.Track = None,
) -> None:
    """Run an experiment with all clients in this process.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file. After a crash, --resume RUN_DIR
    goes on where the run was, or some seconds before, and ends as if nothing had happened.
    """
    terminal = Terminal()
    require_trackers(track)
    which = WhichRun(experiment=experiment, settings=settings or [], output=output, resume=resume)
    terminal.say(f"preparing to simulate {which}")
    guard = guarded(context, terminal.say)

    from common.learning.data import DataFolder
    from common.program.device import choose_device
    from server.commands.audience import Audience
    from server.commands.simulated import run_simulation
    from server.simulation.simulation import Simulation

    clients_device = choose_device(device)
    with which.opened(guard, terminal.say, simulated=True) as run:
        problem = run.experiment.load(DataFolder.choose(data), clients_device)
        simulation = Simulation(run.experiment, problem, clients_device)
        run.begin(problem.data_name)
        if run.entry:
            simulation.go_on_from(run.entry.checkpoint, run.entry.controls, run.entry.before)
        command = command_to_go_on(context, run.folder.path)
        audience = Audience(terminal=terminal, command=command, trackers=track or [], watch=watch)
        for line in run_simulation(simulation, run.folder, audience, run.entry):
            terminal.say(line)
