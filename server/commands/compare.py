"""The command `proxskip-server compare`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from common.errors import DivergedError, UserError
from common.experiment import plugins
from common.experiment.shipped import experiment_path
from common.rounds.records import RoundRecord
from server.commands import options
from server.commands.console import Terminal
from server.commands.going_on import command_to_go_on
from server.runs.run_folder import RunFolder, next_free

if TYPE_CHECKING:  # it brings torch, which is slow to import
    from server.simulation.simulation import Simulation


def compare(
    context: typer.Context,
    experiment: options.ExperimentName,
    algorithms: options.Algorithms = None,
    settings: options.Settings = None,
    output: options.Output = None,
    data: options.Data = None,
    device: options.Device = "auto",
    reach: options.Reach = None,
    paper_bits: options.PaperBits = False,
) -> None:
    """Simulate an experiment with several algorithms, all if none is named, and draw the metric against uploaded bits.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file.
    """
    experiment_path(experiment)
    plugins.require_known("strategies", algorithms or [], "algorithm")

    from common.experiment.files import load_experiment
    from common.learning.data import DataFolder
    from common.program.device import choose_device
    from common.rounds.algorithm import Algorithm
    from server.runs.figure import draw_comparison, require_figures
    from server.runs.report import compared, comparison, count_for, curve
    from server.simulation.simulation import Simulation

    require_figures()
    terminal = Terminal()
    names = list(dict.fromkeys(algorithms or plugins.available(Algorithm.plugin_package)))
    chosen = {name: load_experiment(experiment, [*(settings or []), f"algorithm.name={name}"]) for name in names}
    source, clients_device = DataFolder.choose(data), choose_device(device)
    first = chosen[names[0]]
    parent = output or next_free(Path("runs"), f"{first.name}-comparison")
    runs = {}
    with ExitStack() as stack:
        folders = {name: stack.enter_context(RunFolder.reserved(parent / name, name)) for name in names}
        problem = first.load(source, clients_device)
        for name, one in chosen.items():
            same = (one.task, one.clients, one.seed) == (first.task, first.clients, first.seed)
            own_problem = problem if same else one.load(source, clients_device)
            command = command_to_go_on(context, folders[name].path, "simulate")
            simulation = Simulation(one, own_problem, clients_device)
            runs[name] = _run_as_far_as_it_goes(simulation, folders[name], terminal, command)
    runs = {name: records for name, records in runs.items() if curve(records, problem.metric)}
    if not runs:
        raise UserError("no algorithm got as far as an evaluation: there is nothing to compare")
    count = count_for(runs, paper_bits=paper_bits)
    densities = {name: chosen[name].algorithm.density for name in runs}
    rows = compared(runs, problem.metric, count, reach or [], densities=densities)
    terminal.print(comparison(rows, problem.metric, count))
    figure, title = parent / "comparison.png", f"{problem.data_name}, {problem.clients} clients"
    draw_comparison(runs, problem.metric, count, title=title, path=figure)
    terminal.say(f"figure: {figure}\nresults: {parent}")


def _run_as_far_as_it_goes(
    simulation: Simulation, folder: RunFolder, terminal: Terminal, command: str
) -> list[RoundRecord]:
    """Run one side of a comparison; that a method diverges is a result, not the end of the comparison."""
    from server.commands.audience import Audience
    from server.commands.simulated import run_simulation

    folder.begin(simulation.experiment, simulation.problem.data_name)
    try:
        run_simulation(simulation, folder, Audience(terminal=terminal, command=command))
    except DivergedError as error:
        terminal.say(f"{folder.path.name}: {error}")
    return folder.rounds()
