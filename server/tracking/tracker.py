"""What a tracker is: a tool in which people look at runs, told of one run."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from common.errors import UserError
from common.experiment import plugins
from common.experiment.config import to_mapping
from common.rounds.records import RoundRecord
from common.storage.replace import replace_file
from server.runs.run_folder import RunFolder

if TYPE_CHECKING:  # it brings torch, which is slow to import
    from common.experiment.experiment import Experiment

TOOLS = "server.tracking.tools"
FOLDER = "tracked"  # in a run's folder: what trackers keep there
LEFT_OUT = ("round", "clients")  # the step, and what is a parameter


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The run that a tool is told of."""

    folder: RunFolder
    experiment: Experiment

    @property
    def name(self) -> str:
        """Return how people know the run."""
        return self.folder.path.resolve().name

    @property
    def own_folder(self) -> Path:
        """Return where a tracker may keep what it needs to go on with the run."""
        return self.folder.path / FOLDER

    def parameters(self) -> dict[str, Any]:
        """Return the experiment as flat keys, as `--set` takes them."""
        return _flat(to_mapping(self.experiment))

    def saved_id(self, tool: str) -> str | None:
        """Return by which name a tool knows the run; None if it does not yet."""
        path = self._id_file(tool)
        return path.read_text(encoding="utf-8").strip() if path.is_file() else None

    def save_id(self, tool: str, name: str) -> None:
        """Remember by which name a tool knows the run, so that it goes on there after a crash."""
        replace_file(self._id_file(tool), f"{name}\n".encode())

    def _id_file(self, tool: str) -> Path:
        return self.own_folder / f"{tool}.id"


class Tracker(ABC):
    """One run in a tool. It is made in a thread of its own, and may take its time, or fail."""

    package: ClassVar[str]  # that must be importable
    newest_round: int = 0  # that the tool has of the run already

    @abstractmethod
    def __init__(self, run: TrackedRun) -> None:
        """Begin a run in the tool, or go on with it."""

    @abstractmethod
    def log(self, record: RoundRecord) -> None:
        """Tell of a round; they come in order, each once."""

    @abstractmethod
    def close(self, *, finished: bool) -> None:
        """Tell that there are no more rounds for now."""


def require_trackers(names: Sequence[str] | None) -> None:
    """Refuse, before anything is begun, tools that are unknown or not installed."""
    plugins.require_known(TOOLS, names or [], "tracker")
    for name in names or []:
        package = tracker_class(name).package
        if importlib.util.find_spec(package) is None:
            raise UserError(f"--track {name} needs {package}: pip install 'sparse-proxskip[{name}]'")


def tracker_class(name: str) -> type[Tracker]:
    """Return the tracker of that name."""
    found: type[Tracker] = plugins.find(TOOLS, name, Tracker)
    return found


def scalars(record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a round, by their names in rounds.jsonl."""
    values = {one.name: getattr(record, one.name) for one in fields(record) if one.name not in LEFT_OUT}
    numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
    phases = {f"seconds_{phase}": seconds for phase, seconds in record.seconds_by_phase.items()}
    return {**numbers, **phases, **record.metrics}


def unix_seconds(record: RoundRecord) -> float:
    """Return when a round was done."""
    return datetime.fromisoformat(record.time).timestamp()


def _flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
