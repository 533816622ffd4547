"""What a run leaves behind: its experiment, rounds.jsonl, clients.jsonl, events.jsonl, the model and its card."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from common.experiment.plain_yaml import read_yaml
from common.rounds.records import ClientRecord, RoundRecord, clients_of_json
from common.say import one_line
from common.storage.disk import writing
from common.storage.lock import locked
from common.storage.replace import replace_file

if TYPE_CHECKING:  # they bring torch, which is slow to import, and not needed to look into a folder
    from common.experiment.experiment import Experiment
    from server.model.finished import FinishedModel

EXPERIMENT = "experiment.yaml"
DATA = "# data: "  # how that file begins
ROUNDS = "rounds.jsonl"
CLIENTS = "clients.jsonl"
EVENTS = "events.jsonl"
MODEL = "model.safetensors"
CARD = "README.md"
REPORT = "report.html"
LOCK_SECONDS = 10.0

_CLIENTS_OF_ROUND = re.compile(rb'\{"round":(\d+),')  # how a line of clients.jsonl begins


class RunFolder:
    """A folder that holds one run and is never written over by another."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def reserved(cls, given: Path | None, name: str) -> Iterator[RunFolder]:
        """Make and lock the folder that --output names, or the next free one; without a run in it, it goes again."""
        path, made = _made(given, name)
        folder = cls(path)
        with folder.locked():
            if folder.is_begun:
                raise UserError(f"--output {path} already holds a run; name another folder or remove this one")
            if folder.holds_another_experiment:
                raise UserError(f"--output {path} holds an {EXPERIMENT} that is no run's; name another folder")
            try:
                yield folder
            finally:
                if not folder.is_begun:
                    if made:
                        folder.experiment_file.unlink(missing_ok=True)
                    _take_away(made)

    @classmethod
    def create(cls, given: Path | None, experiment: Experiment, data_name: str) -> RunFolder:
        """Begin a run in the folder that --output names, or in the next free one under runs/."""
        with cls.reserved(given, experiment.name) as folder:
            folder.begin(experiment, data_name)
        return folder

    def begin(self, experiment: Experiment, data_name: str) -> None:
        """Write down what the run is; from then on there is a run in this folder."""
        with writing(self.path) as path:
            self.experiment_file.write_text(f"{DATA}{data_name}\n{experiment.to_yaml()}", encoding="utf-8")
            (path / ROUNDS).touch()

    def experiment(self) -> Experiment:
        """Return the experiment of the run that is in this folder."""
        from common.experiment.files import load_experiment

        return load_experiment(str(self.experiment_file))

    def density(self) -> float:
        """Return the share of its weights that the run's model keeps; without torch, which is slow to import."""
        file = self.experiment_file
        try:
            settings: Any = read_yaml(file.read_text(encoding="utf-8"), str(file))
            return float(settings["algorithm"]["density"])
        except OSError as error:
            raise UserError(f"{self.path} is not a run's folder: {error.strerror}: {EXPERIMENT}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(file, error) from None

    @property
    def experiment_file(self) -> Path:
        """Return where the resolved experiment is."""
        return self.path / EXPERIMENT

    @property
    def is_begun(self) -> bool:
        """Say whether there is a run in this folder."""
        return (self.path / ROUNDS).is_file()

    @property
    def holds_another_experiment(self) -> bool:
        """Say whether an experiment lies here that no run has left: a user's own."""
        return self.experiment_file.is_file() and not self.experiment_file.read_text("utf-8", "replace").startswith(
            DATA
        )

    @property
    def model_file(self) -> Path:
        """Return where the final model is."""
        return self.path / MODEL

    @property
    def is_finished(self) -> bool:
        """Say whether the final model is there."""
        return self.model_file.is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running the same run at the same time; one that is about to end is waited for."""
        with locked(self.path, LOCK_SECONDS, f"{self.path}: another process is at work on this run"):
            if not self.path.is_dir():
                raise UserError(f"{self.path} was taken away by the process that had begun it; start again")
            yield

    def go_back_to(self, last: RoundRecord | None) -> None:
        """Let the run's files end with this round: a crash may have torn a last line, or come before it."""
        with writing(self.path / ROUNDS) as path:
            lines = path.read_text("utf-8", "replace").splitlines() if last and path.exists() else []
            kept = _in_order(lines, last.round) if last else []
            newest = [last.to_json()] if last else []
            draft = path.with_suffix(".new")
            draft.write_text("".join(f"{line}\n" for line in [*kept, *newest]), encoding="utf-8")
            draft.replace(path)
        self._cut_clients(last.round if last else 0)

    def _cut_clients(self, last: int) -> None:
        """Let clients.jsonl end with a round; in its place, as it may be large."""
        with writing(self.path / CLIENTS) as path, suppress(FileNotFoundError), path.open("rb+") as file:
            end = place = 0
            for line in file:
                place += len(line)
                begin = _CLIENTS_OF_ROUND.match(line)
                if begin and int(begin[1]) <= last and line.endswith(b"\n"):
                    end = place
            file.truncate(end)

    def wait_for_disk(self) -> None:
        """Return when all rounds so far would survive a failure of the power."""
        for name in (ROUNDS, CLIENTS):
            with writing(self.path / name) as path, suppress(FileNotFoundError), path.open("rb+") as file:
                os.fsync(file.fileno())

    def add_round(self, record: RoundRecord) -> None:
        """Append one line to rounds.jsonl."""
        self._append(ROUNDS, record.to_json())

    def add_clients(self, record: RoundRecord) -> None:
        """Append one line to clients.jsonl."""
        self._append(CLIENTS, record.clients_to_json())

    def add_event(self, line: str) -> None:
        """Append one line to events.jsonl; one that a crash has torn ends before it."""
        with writing(self.path / EVENTS) as path:
            torn = path.exists() and not _ends_with_a_line(path)
        self._append(EVENTS, f"\n{line}" if torn else line)

    def _append(self, name: str, text: str) -> None:
        """Append a line, all of it or nothing."""
        line = f"{text}\n".encode()
        with writing(self.path / name) as path, path.open("ab", buffering=0) as file:
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
            return [RoundRecord.of_json(line) for line in lines]
        except OSError as error:
            raise UserError(f"{self.path} is not a run's folder: {error.strerror}: {ROUNDS}") from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _unreadable(self.path / ROUNDS, error) from None

    def clients(self) -> Iterator[tuple[int, dict[str, ClientRecord]]]:
        """Read clients.jsonl back, round by round, as it may be large; a simulation has none."""
        with suppress(FileNotFoundError), (self.path / CLIENTS).open("rb") as lines:
            for line in lines:
                try:
                    one = clients_of_json(line.decode())
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise _unreadable(self.path / CLIENTS, error) from None
                yield one

    def save_model(self, model: FinishedModel) -> None:
        """Write the final, pruned model and its card."""
        from common.storage.durable import write_durably
        from server.model.card import OPENING, card

        file = self.path / CARD
        if not file.exists() or (file.is_file() and file.read_bytes().startswith(OPENING.encode())):  # no user's own
            replace_file(file, card(model).encode())
        write_durably(self.path / MODEL, model.tensors, model.metadata())  # the last file: with it, a run is finished

    def model(self) -> FinishedModel:
        """Read the final model back."""
        from server.model.finished import FinishedModel

        if not self.is_begun:
            raise UserError(f"{self.path} is not a run's folder: it has no {ROUNDS}")
        if not self.is_finished:
            raise UserError(
                f"{self.path} has no model yet, after {len(self.rounds())} of {self.experiment().rounds} rounds; "
                f"wait for its end, or if it was stopped, go on with --resume {self.path}"
            )
        return FinishedModel.read(self.path / MODEL, self.experiment())


def _made(given: Path | None, name: str) -> tuple[Path, list[Path]]:
    """Return the folder that is given, or a free one, and all that had to be made for it, the innermost first."""
    while True:
        with writing(given or next_free(Path("runs"), name)) as path:
            missing = [one for one in (path, *path.parents) if not one.exists()]
            with suppress(FileExistsError):  # somebody else has just taken it
                path.mkdir(parents=True, exist_ok=given is not None)
                return path, missing
            if given is not None:
                raise UserError(f"--output {path} is a file; name a folder")


def _take_away(made: Iterable[Path]) -> None:
    """Remove folders that we have made and that nothing was begun in, the innermost first."""
    for folder in made:
        with suppress(OSError):  # somebody else has put something there
            folder.rmdir()


def _ends_with_a_line(path: Path) -> bool:
    """Say whether a file is empty, or its last line whole."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) in (b"", b"\n")


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} was written by another version, or damaged: {one_line(repr(error))}")


def _in_order(lines: Iterable[str], end: int) -> list[str]:
    """Return the lines of rounds before one, each round once: what is torn, or was edited, must not end a run later."""
    kept: list[str] = []
    newest = 0
    for line in lines:
        if newest < (number := _round_in(line)) < end:
            newest = number
            kept.append(line)
    return kept


def _round_in(line: str) -> int:
    """Return the number of a round from its line; 0 where that is none."""
    try:
        return int(RoundRecord.of_json(line).round)
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0


def next_free(parent: Path, name: str) -> Path:
    """Return parent/name, or parent/name-2 and so on where that is taken."""
    number = 1
    path = parent / name
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path
