"""What a run leaves behind: experiment.yaml, rounds.jsonl, model.safetensors."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from common.errors import UserError
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.rounds.records import RoundRecord
from common.rounds.state import ServerState
from common.storage.disk import writing
from common.storage.durable import write_durably

EXPERIMENT = "experiment.yaml"
ROUNDS = "rounds.jsonl"
MODEL = "model.safetensors"
BUFFERS = "buffers.safetensors"
LOCK_SECONDS = 10.0


class RunFolder:
    """A folder that holds one run and is never written over by another."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, given: Path | None, experiment: Experiment, data_name: str) -> RunFolder:
        """Make the folder that --output names, or the next free one under runs/."""
        with writing(given or next_free(Path("runs"), experiment.name)) as path:
            if cls(path).is_begun:
                raise UserError(f"--output {path} already holds a run; name another folder or remove this one")
            path.mkdir(parents=True, exist_ok=True)
            (path / EXPERIMENT).write_text(f"# data: {data_name}\n{experiment.to_yaml()}", encoding="utf-8")
            (path / ROUNDS).touch()
        return cls(path)

    @classmethod
    def reopen(cls, path: Path) -> tuple[RunFolder, Experiment]:
        """Return the folder of a run that is to go on, and its experiment."""
        folder = cls(path)
        if not folder.experiment_file.is_file():
            raise UserError(f"--resume {path}: there is no run; it has no {EXPERIMENT}")
        return folder, load_experiment(str(folder.experiment_file))

    @property
    def experiment_file(self) -> Path:
        """Return where the resolved experiment is."""
        return self.path / EXPERIMENT

    @property
    def is_begun(self) -> bool:
        """Say whether there is a run in this folder."""
        return (self.path / ROUNDS).is_file()

    @property
    def is_finished(self) -> bool:
        """Say whether the final model is there."""
        return (self.path / MODEL).is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running the same run at the same time; one that is about to end is waited for."""
        with self.experiment_file.open("rb") as file:
            end = time.monotonic() + LOCK_SECONDS
            while not _lock(file):
                if time.monotonic() > end:
                    raise UserError(f"{self.path}: another process is at work on this run")
                time.sleep(0.1)
            yield

    def go_back_to(self, last: RoundRecord | None) -> None:
        """Let rounds.jsonl end with this round: a crash may have torn its last line, or come before it."""
        with writing(self.path / ROUNDS) as path:
            lines = path.read_text(encoding="utf-8").splitlines()[: last.round - 1] if last and path.exists() else []
            draft = path.with_suffix(".new")
            newest = [last.to_json()] if last else []
            draft.write_text("".join(f"{line}\n" for line in [*lines, *newest]), encoding="utf-8")
            draft.replace(path)

    def add_round(self, record: RoundRecord) -> None:
        """Append one line to rounds.jsonl."""
        line = f"{record.to_json()}\n".encode()
        with writing(self.path / ROUNDS) as path, path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)  # no half line
                raise

    def rounds(self) -> list[RoundRecord]:
        """Read rounds.jsonl back."""
        try:
            lines = (self.path / ROUNDS).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UserError(f"{self.path} is not a run's folder: {error.strerror}: {ROUNDS}") from None
        try:
            return [RoundRecord.of_json(line) for line in lines]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.path / ROUNDS} was written by another version, or damaged: {error!r}") from None

    def save_model(self, state: ServerState) -> None:
        """Write the final, pruned model, and in a file of their own the BatchNorm statistics that belong to it."""
        if state.buffers is not None:
            write_durably(self.path / BUFFERS, {"buffers": state.buffers}, {})
        write_durably(self.path / MODEL, {"model": state.model}, {})  # the last file of a run: with it, it is finished


def _lock(file: IO[bytes]) -> bool:
    """Take the lock that goes with an open file, and with the process that has it open."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def next_free(parent: Path, name: str) -> Path:
    """Return parent/name, or parent/name-2 and so on where that is taken."""
    number = 1
    path = parent / name
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path
