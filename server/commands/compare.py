"""The command `proxskip-server compare`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import DivergedError, UserError
from common.experiment import plugins
from common.experiment.shipped import experiment_path
from common.rounds.records import RoundRecord
from server.commands import options
from server.commands.console import Terminal
from server.runs.run_folder import RunFolder, next_free

if TYPE_CHECKING:  # it brings torch, which is slow to import
    from server.simulation.simulation import Simulation


def compare(
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
    from server.runs.report import all_encoded, compared, comparison, curve, draw_comparison, require_figures
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
            runs[name] = _run_as_far_as_it_goes(Simulation(one, own_problem, clients_device), folders[name], terminal)
    runs = {name: records for name, records in runs.items() if curve(records, problem.metric)}
    if not runs:
        raise UserError("no algorithm got as far as an evaluation: there is nothing to compare")
    as_sent = all_encoded(runs) and not paper_bits
    densities = {name: chosen[name].algorithm.density for name in runs}
    rows = compared(runs, problem.metric, reach or [], densities=densities, as_sent=as_sent)
    terminal.print(comparison(rows, problem.metric, as_sent=as_sent))
    figure, title = parent / "comparison.png", f"{problem.data_name}, {problem.clients} clients"
    draw_comparison(runs, problem.metric, as_sent=as_sent, title=title, path=figure)
    terminal.say(f"figure: {figure}\nresults: {parent}")


def _run_as_far_as_it_goes(simulation: Simulation, folder: RunFolder, terminal: Terminal) -> list[RoundRecord]:
    """Run one side of a comparison; that a method diverges is a result, not the end of the comparison."""
    from server.commands.simulated import run_simulation

    folder.begin(simulation.experiment, simulation.problem.data_name)
    try:
        run_simulation(simulation, folder, terminal)
    except DivergedError as error:
        terminal.say(f"{folder.path.name}: {error}")
    return folder.rounds()
