"""Which run a command is about: a new one of an experiment, or one that was begun and goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from common.errors import UserError
from common.experiment.shipped import experiment_path
from common.say import Say
from server.deploy.guard import Guard
from server.runs.events import EventLog
from server.runs.run_folder import EXPERIMENT, RunFolder

if TYPE_CHECKING:  # they bring torch, which is slow to import
    from common.experiment.experiment import Experiment
    from server.runs.journal import JournalEntry


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run whose folder is ours alone as long as it is open."""

    folder: RunFolder
    experiment: Experiment
    entry: JournalEntry | None  # of the journal, to go on from; None where nothing was done yet
    guard: Guard
    say: Say  # to the operator; what is said once the run is begun is kept in its folder

    def begin(self, data_name: str) -> None:
        """Note in a new folder what the run is, with data that is at hand; from here on it can go on after a crash."""
        if not self.folder.is_begun:
            self.folder.begin(self.experiment, data_name)
        self.guard.announce(self.folder.path)


@dataclass(frozen=True, kw_only=True)
class WhichRun:
    """What the options say of the run, refused as far as that can be done at once."""

    experiment: str | None
    settings: Sequence[str]
    output: Path | None
    resume: Path | None

    def __post_init__(self) -> None:
        if self.resume is None and self.experiment is None:
            raise UserError("say which EXPERIMENT to run, or --resume RUN_DIR to go on with a run")
        if self.resume is not None and self.output is not None:
            raise UserError("--resume goes on in the folder of the run; --output is for a new one")
        if self.resume is not None and not RunFolder(self.resume).experiment_file.is_file():
            raise UserError(f"--resume {self.resume}: there is no run; it has no {EXPERIMENT}")
        if self.experiment is not None:
            experiment_path(self.experiment)

    def __str__(self) -> str:
        return str(self.resume or self.experiment)

    @contextmanager
    def opened(self, guard: Guard, say: Say, *, simulated: bool) -> Iterator[OpenRun]:
        """Take the folder and look into its journal; a folder that is new goes again if no run is begun in it."""
        from common.experiment.files import load_experiment

        resume = guard.interrupted or self.resume
        if resume is None:
            assert self.experiment is not None
            experiment = load_experiment(self.experiment, self.settings)
            with RunFolder.reserved(self.output, experiment.name) as folder:
                log = EventLog(folder, say)
                yield OpenRun(folder=folder, experiment=experiment, entry=None, guard=guard, say=log.say)
            return
        folder = RunFolder(resume)
        experiment = folder.experiment()
        if guard.interrupted is None:
            self._refuse_another_than(experiment)
        with folder.locked():
            if folder.is_finished:
                say(f"{resume} is finished, after {len(folder.rounds())} rounds")
                raise typer.Exit
            entry = _last_entry(folder, experiment, say, simulated=simulated)
            log = EventLog(folder, say)
            yield OpenRun(folder=folder, experiment=experiment, entry=entry, guard=guard, say=log.say)

    def _refuse_another_than(self, begun: Experiment) -> None:
        from common.experiment.files import load_experiment

        assert self.resume is not None
        if load_experiment(self.experiment or str(RunFolder(self.resume).experiment_file), self.settings) != begun:
            raise UserError(
                f"--resume {self.resume}: that run is another experiment; leave out EXPERIMENT, --set and --clients"
            )


def _last_entry(folder: RunFolder, experiment: Experiment, say: Say, *, simulated: bool) -> JournalEntry | None:
    from server.runs.journal import Journal
    from server.simulation.simulation import SIMULATION

    entry = Journal(folder.path, experiment).read()
    if entry is not None:
        if (entry.run == SIMULATION) != simulated:
            command = "simulate" if entry.run == SIMULATION else "run or local"
            raise UserError(f"--resume {folder.path}: that run can only go on with {command}")
        say(f"going on after round {entry.checkpoint.round} of {experiment.rounds}")
    return entry
