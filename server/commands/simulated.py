"""A simulated run, shown and kept as it goes: what `simulate` and `compare` share."""

from __future__ import annotations

from common.experiment import plugins
from common.rounds.algorithm import Algorithm
from server.commands.console import Terminal
from server.runs.journal import JournalEntry
from server.runs.progress import live_view
from server.runs.recorder import Recorder
from server.runs.run_folder import RunFolder
from server.simulation.simulation import SIMULATION, Simulation
from server.watch.report import write_report

SECONDS_BETWEEN_ENTRIES = 10.0  # in the journal, as a simulation can do some rounds again


def run_simulation(
    simulation: Simulation, folder: RunFolder, terminal: Terminal, resume_from: JournalEntry | None = None
) -> None:
    """Run the rounds that are left, and save the model."""
    title = plugins.name_of(Algorithm.plugin_package, type(simulation.algorithm))
    experiment, metric = simulation.experiment, simulation.problem.metric
    with live_view(terminal, title=title, rounds=experiment.rounds, metric=metric) as view:
        recorder = Recorder(
            folder,
            experiment,
            resume_from,
            show=view.show,
            say=terminal.say,
            run=SIMULATION,
            seconds_between_entries=SECONDS_BETWEEN_ENTRIES,
        )
        for record in simulation.rounds():
            recorder.on_round(record, simulation.checkpoint, simulation.controls)
    recorder.finish(simulation.kept())
    write_report(folder.path, terminal.say)
