"""The program `proxskip-server`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from common import plugins
from common.algorithm import Algorithm
from common.data import ENVIRONMENT_VARIABLE, DataFolder
from common.errors import UserError
from common.experiment import Experiment, load_experiment, shipped_experiments
from common.task import Problem, Task
from common.types import RoundRecord
from server.progress import live_view
from server.report import comparison_table, curve, draw_comparison, require_figures
from server.run_folder import RunFolder, next_free
from server.simulate import DivergedError, Simulation

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console()

ExperimentName = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="a shipped experiment or a YAML file")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a key, such as algorithm.density=0.1")
]
Output = Annotated[Path | None, typer.Option(metavar="DIR", help="where results go; runs/NAME by default")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help=f"folder of data sets; else ${ENVIRONMENT_VARIABLE}, else downloads")
]
Device = Annotated[str, typer.Option(help="where clients compute: auto (a GPU if there is one), cpu, cuda:0, mps")]
Reach = Annotated[
    list[float] | None, typer.Option(metavar="VALUE", help="show what it cost to reach this value of the metric")
]
Algorithms = Annotated[list[str] | None, typer.Argument(metavar="[ALGORITHM]...", help="all, if none is named")]


@app.callback()
def proxskip_server() -> None:
    """Accelerated sparse-to-sparse federated learning."""


@app.command("simulate")
def simulate_command(
    experiment: ExperimentName,
    settings: Settings = None,
    output: Output = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Run an experiment with all clients in this process.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file.
    """
    chosen = load_experiment(experiment, settings or [])
    clients_device = _device(device)
    problem = _load(chosen, DataFolder.choose(data), clients_device)
    folder = RunFolder.create(output, chosen, problem.data_name)
    _run(Simulation(chosen, problem, clients_device), folder)
    last = folder.rounds()[-1]
    score = f"{problem.metric} {last.metrics[problem.metric]:.4f}"
    upload = f"{last.paper_bits_up / 1e6:.3f} Mbit up a client"
    _say(f"{problem.data_name}: {score} after {last.round} rounds and {upload}")
    _say(f"results: {folder.path}")


@app.command()
def compare(
    experiment: ExperimentName,
    algorithms: Algorithms = None,
    settings: Settings = None,
    output: Output = None,
    data: Data = None,
    device: Device = "auto",
    reach: Reach = None,
) -> None:
    """Simulate an experiment with several algorithms, all if none is named, and draw the metric against uploaded bits.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file.
    """
    require_figures()
    names = algorithms or plugins.available(Algorithm.plugin_package)
    chosen = {name: load_experiment(experiment, [*(settings or []), f"algorithm.name={name}"]) for name in names}
    folder, clients_device = DataFolder.choose(data), _device(device)
    first = chosen[names[0]]
    problem = _load(first, folder, clients_device)
    parent = output or next_free(Path("runs"), f"{first.name}-comparison")
    runs = {}
    for name, one in chosen.items():
        same = (one.task, one.clients, one.seed) == (first.task, first.clients, first.seed)
        own_problem = problem if same else _load(one, folder, clients_device)
        runs[name] = _run_as_far_as_it_goes(Simulation(one, own_problem, clients_device), parent / name)
    runs = {name: records for name, records in runs.items() if curve(records, problem.metric)}
    if not runs:
        raise UserError("no algorithm got as far as an evaluation: there is nothing to compare")
    console.print(comparison_table(runs, problem.metric, reach or []))
    figure = parent / "comparison.png"
    draw_comparison(runs, metric=problem.metric, title=f"{problem.data_name}, {problem.clients} clients", path=figure)
    _say(f"figure: {figure}\nresults: {parent}")


@app.command("list")
def list_command() -> None:
    """List the experiments, algorithms and tasks that are at hand."""
    _say(f"experiments: {', '.join(shipped_experiments())}")
    _say(f"algorithms: {', '.join(plugins.available(Algorithm.plugin_package))}")
    _say(f"tasks: {', '.join(plugins.available(Task.plugin_package))}")


def _load(experiment: Experiment, folder: DataFolder, device: torch.device) -> Problem:
    return experiment.task.load(folder, clients=experiment.clients, seed=experiment.seed, device=device)


def _run(simulation: Simulation, folder: RunFolder) -> None:
    title = plugins.name_of(Algorithm.plugin_package, type(simulation.algorithm))
    rounds, metric = simulation.experiment.rounds, simulation.problem.metric
    with live_view(console, title=title, rounds=rounds, metric=metric) as view:
        for record in simulation.rounds():
            folder.add_round(record)
            view.show(record)
    folder.save_model(simulation.kept())


def _run_as_far_as_it_goes(simulation: Simulation, path: Path) -> list[RoundRecord]:
    """Run one side of a comparison; that a method diverges is a result, not the end of the comparison."""
    folder = RunFolder.create(path, simulation.experiment, simulation.problem.data_name)
    try:
        _run(simulation, folder)
    except DivergedError as error:
        _say(f"{path.name}: {error}")
    return folder.rounds()


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"--device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return torch.device(name)


def _say(text: str) -> None:
    """Print a line as it is, whatever brackets a path may have."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the program; an error that the user can mend is one line and exit code 2."""
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
