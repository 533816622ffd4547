"""The program `proxskip-server`."""

from __future__ import annotations

import functools
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
from server.report import comparison_table, draw_comparison
from server.run_folder import RunFolder, next_free
from server.simulate import DivergedError, simulate

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
Device = Annotated[str, typer.Option(help="auto, cpu, cuda:0, mps")]
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
    problem = _load(chosen, data, device)
    folder = RunFolder.create(output, chosen)
    _run(chosen, problem, folder)
    last = folder.rounds()[-1]
    score = f"{problem.metric} {last.metrics[problem.metric]:.4f}"
    upload = f"{last.paper_bits_up / 1e6:.3f} Mbit up a client"
    console.print(f"{problem.data_name}: {score} after {last.round} rounds and {upload}", soft_wrap=True)
    console.print(f"results: {folder.path}", soft_wrap=True)


@app.command()
def compare(
    experiment: ExperimentName,
    algorithms: Algorithms = None,
    settings: Settings = None,
    output: Output = None,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Simulate an experiment with several algorithms, all if none is named, and draw the metric against uploaded bits.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file.
    """
    names = algorithms or plugins.available(Algorithm.plugin_package, Algorithm)
    chosen = {name: load_experiment(experiment, [*(settings or []), f"algorithm.name={name}"]) for name in names}
    problems = {name: _load(one, data, device) for name, one in chosen.items()}
    parent = output or next_free(Path("runs"), f"{chosen[names[0]].name}-comparison")
    runs = {name: _run_to_the_end(one, problems[name], parent / name) for name, one in chosen.items()}
    runs = {name: records for name, records in runs.items() if records}
    if not runs:
        raise UserError("no algorithm finished a round: there is nothing to compare")
    problem = problems[names[0]]
    figure = parent / "comparison.png"
    draw_comparison(runs, metric=problem.metric, title=f"{problem.data_name}, {problem.clients} clients", path=figure)
    console.print(comparison_table(runs, problem.metric))
    console.print(f"figure: {figure}\nresults: {parent}", soft_wrap=True)


@app.command("list")
def list_command() -> None:
    """List the experiments, algorithms and tasks that are at hand."""
    console.print("experiments:", ", ".join(shipped_experiments()))
    console.print("algorithms:", ", ".join(plugins.available(Algorithm.plugin_package, Algorithm)))
    console.print("tasks:", ", ".join(plugins.available(Task.plugin_package, Task)))


def _load(experiment: Experiment, data: Path | None, device: str) -> Problem:
    return _load_task(experiment.task, DataFolder.choose(data), experiment.clients, experiment.seed, _device(device))


@functools.cache  # a comparison reads the data once
def _load_task(task: Task, folder: DataFolder, clients: int, seed: int, device: torch.device) -> Problem:
    return task.load(folder, clients=clients, seed=seed, device=device)


def _run(experiment: Experiment, problem: Problem, folder: RunFolder) -> None:
    title = plugins.name_of(Algorithm.plugin_package, type(experiment.algorithm))
    with live_view(console, title=title, rounds=experiment.rounds, metric=problem.metric) as view:
        for record, model in simulate(experiment, problem):
            folder.add_round(record)
            view.show(record)
            kept = model
    folder.save_model(kept)


def _run_to_the_end(experiment: Experiment, problem: Problem, path: Path) -> list[RoundRecord]:
    """Run one side of a comparison; that a method diverges is a result, not the end of the comparison."""
    folder = RunFolder.create(path, experiment)
    try:
        _run(experiment, problem, folder)
    except DivergedError as error:
        console.print(f"{path.name}: {error}", soft_wrap=True)
    return folder.rounds()


def _device(name: str) -> torch.device:
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"--device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return torch.device(name)


def main() -> None:
    """Run the program; an error that the user can mend is one line and exit code 2."""
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
