"""A simulated run, shown and kept as it goes: what `simulate` and `compare` share."""

from __future__ import annotations

import time

from common.experiment import plugins
from common.rounds.algorithm import Algorithm
from server.commands.console import Terminal
from server.runs.journal import Journal
from server.runs.progress import live_view
from server.runs.run_folder import RunFolder
from server.simulation.simulation import Simulation

SECONDS_BETWEEN_ENTRIES = 10.0  # in the journal, as a simulation can do some rounds again


def run_simulation(simulation: Simulation, folder: RunFolder, terminal: Terminal) -> None:
    """Run the rounds that are left, and save the model."""
    title = plugins.name_of(Algorithm.plugin_package, type(simulation.algorithm))
    rounds, metric = simulation.experiment.rounds, simulation.problem.metric
    journal, written = Journal(folder.path, simulation.experiment), time.monotonic()
    with live_view(terminal, title=title, rounds=rounds, metric=metric) as view:
        for record in simulation.rounds():
            folder.add_round(record)
            view.show(record)
            if time.monotonic() - written > SECONDS_BETWEEN_ENTRIES:
                journal.write(simulation.entry(record))
                written = time.monotonic()
    folder.save_model(simulation.kept())
