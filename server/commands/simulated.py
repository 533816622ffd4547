"""A simulated run, shown and kept as it goes: what `simulate` and `compare` share."""

from __future__ import annotations

from server.commands.audience import Audience
from server.runs.about import About
from server.runs.course import Course
from server.runs.journal import JournalEntry
from server.runs.now import RunNow
from server.runs.recorder import Recorder
from server.runs.run_folder import RunFolder
from server.runs.summary import closing_lines
from server.simulation.simulation import SIMULATION, Simulation
from server.watch.report import write_report

SECONDS_BETWEEN_ENTRIES = 10.0  # in the journal, as a simulation can do some rounds again


def run_simulation(
    simulation: Simulation, folder: RunFolder, audience: Audience, resume_from: JournalEntry | None = None
) -> list[str]:
    """Run the rounds that are left, and save the model; return the last words on the run."""
    experiment, course = simulation.experiment, Course(simulation.problem.metric)
    recorder = Recorder(
        folder,
        experiment,
        resume_from,
        show=course.add,
        say=audience.terminal.say,
        run=SIMULATION,
        seconds_between_entries=SECONDS_BETWEEN_ENTRIES,
    )
    course.catch_up(folder.rounds(), folder.clients())
    about = About.of(
        experiment,
        simulation.problem,
        how="simulated",
        weights=simulation.state.model.numel(),
        folder=folder.path,
        command=audience.command,
    )
    with audience.following(experiment, about, course, lambda: RunNow(state="training", round=course.round + 1)):
        for record in simulation.rounds():
            recorder.on_round(record, simulation.checkpoint, simulation.controls, simulation.before)
        recorder.finish(simulation.problem, simulation.kept())
    write_report(folder.path, audience.terminal.say)
    return closing_lines(about, course, recorder.model)
