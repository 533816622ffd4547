"""The command `proxskip-server tune`."""

from __future__ import annotations

from pathlib import Path

import typer

from common.experiment import plugins
from common.experiment.shipped import experiment_path
from server.commands import options


def tune(
    experiment: options.ExperimentName,
    algorithms: options.Algorithms = None,
    learning_rates: options.LearningRates = "1e-3:1",
    periods: options.Periods = "4:128",
    searched_options: options.SearchedOptions = None,
    periods_tried: options.PeriodsTried = 3,
    local_steps: options.LocalSteps = 4000,
    reach: options.ReachFirst = None,
    seed: options.SearchSeed = 0,
    settings: options.Settings = None,
    output: options.Output = None,
    data: options.Data = None,
) -> None:
    """Search step size and local steps of several algorithms at random, with the same points for all.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file. A search that was interrupted
    goes on where it was when it is called again with the same --output.
    """
    experiment_path(experiment)
    plugins.require_known("strategies", algorithms or [], "algorithm")

    from common.experiment.files import load_experiment
    from common.rounds.algorithm import Algorithm
    from server.research.spaces import Span, options_with
    from server.research.tuning import Search, Trial, best_of, search, write_tuned

    names = tuple(algorithms or plugins.available(Algorithm.plugin_package))
    what = Search(
        experiment=experiment,
        settings=tuple(settings or []),
        algorithms=names,
        learning_rates=Span.read("--learning-rates", learning_rates),
        periods=Span.read("--periods", periods),
        options=options_with(searched_options or [], names),
        groups=periods_tried,
        local_steps=local_steps,
        seed=seed,
    )
    folder = output or Path("runs") / f"{load_experiment(experiment, settings or []).name}-tuning"
    found: list[Trial] = []
    for trial in search(what, data, folder):
        found.append(trial)
        score = "diverged" if trial.diverged else f"{trial.score:.4f}"
        of = len(names) * what.trials
        typer.echo(f"{len(found)}/{of}: {trial.algorithm}, {trial.described}: {score}")
    best = {name: best_of(found, name, reach or []) for name in names}
    for name, chosen in best.items():
        typer.echo(f"{name}: " + (f"{chosen.score:.4f} with {chosen.described}" if chosen else "diverged everywhere"))
    typer.echo(f"settings: {write_tuned(what, best, reach or [], folder)}")
