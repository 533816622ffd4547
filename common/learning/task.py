"""What a task is: data that stays with its clients, a loss on each, and metrics on held-out data.

A public data set is dealt out: every machine has all of it, and a test set. For data that is really private there is
`OwnDataTask`: each client has its own files, and the server has none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from common.errors import UserError
from common.learning.blueprint import Blueprint
from common.learning.data import DataFolder
from common.learning.examples import Examples
from common.rounds.objective import Objective
from common.rounds.state import ServerState


class Problem(ABC):
    """A task with its data at hand; states are on the CPU, objectives on the device."""

    data_name: str  # what the data really is, for reports
    metric: str  # the headline among the metrics
    batched: ClassVar[bool]  # one objective can hold many clients at once
    clients: int

    @abstractmethod
    def initial_state(self) -> ServerState:
        """Return the model that the first round starts from."""

    @abstractmethod
    def objective(self, clients: Sequence[int]) -> Objective:
        """Return the loss of one client, or of several as one batch where the problem is `batched`."""

    @abstractmethod
    def evaluate(self, state: ServerState) -> dict[str, float]:
        """Return the metrics of a model on held-out data."""

    def tensors(self, state: ServerState) -> dict[str, Tensor]:
        """Return a model as it is saved: the state_dict of the blueprint's module, where the task has one."""
        return {"model": state.model} | ({} if state.buffers is None else {"buffers": state.buffers})

    def frozen_digest(self) -> str:
        """Return what tells the part of the model that does not travel from another's; nothing where all of it does."""
        return ""

    def examples(self) -> Examples | None:
        """Return the test set of public data, as the blueprint's inputs."""
        return None


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """The section `task` of an experiment: its options are the fields."""

    plugin_package: ClassVar[str] = "common.tasks"

    @abstractmethod
    def load(self, data: DataFolder, *, clients: int, seed: int, device: torch.device) -> Problem:
        """Read the data and deal it out to the clients."""

    def blueprint(self) -> Blueprint | None:
        """Return what the model is, so that others can predict with it; it depends on the options alone."""
        return None

    def examples(self, data: Path | None, *, clients: int, seed: int) -> Examples | None:
        """Return what can be predicted with the data: of a public data set its test set."""
        problem = self.load(DataFolder.choose(data), clients=clients, seed=seed, device=torch.device("cpu"))
        return problem.examples()


@dataclass(frozen=True)
class ClientFiles:
    """One client's private data: a file or a folder, and the name that the client goes by."""

    client: str
    path: Path


@dataclass(frozen=True)
class Measured:
    """What a client tells of a model on its held-out data: means over so many examples."""

    examples: int
    means: Mapping[str, float]


class OwnDataProblem(Problem):
    """A problem of which only some clients are at hand: one on a client, none on the server, all in a simulation."""

    measured: frozenset[str]  # the names of the means that each client tells

    @abstractmethod
    def measure(self, state: ServerState) -> list[Measured]:
        """Return what each client at hand tells of a model."""

    def summarize(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics, from means over all clients' examples."""
        return dict(means)

    def evaluate(self, state: ServerState) -> dict[str, float]:
        """Return the metrics over the clients at hand."""
        return self.summarize(mean_over_examples(self.measure(state)))


@dataclass(frozen=True, kw_only=True)
class OwnDataTask(Task):
    """A task whose clients bring their own data, and whose server has none."""

    @abstractmethod
    def problem(self, parts: Sequence[ClientFiles], *, clients: int, seed: int, device: torch.device) -> OwnDataProblem:
        """Read the data of the clients at hand; `clients` is how many there are in all."""

    def load(self, data: DataFolder, *, clients: int, seed: int, device: torch.device) -> OwnDataProblem:
        """Read the data of all clients, which are in one folder for once."""
        return self.problem(files_of_clients(data, clients), clients=clients, seed=seed, device=device)

    def examples(self, data: Path | None, *, clients: int, seed: int) -> Examples | None:
        """Return what is in a file or folder of anybody's."""
        if data is None:
            raise UserError("--data PATH: say which file or folder to predict")
        return self.read_examples(data)

    def read_examples(self, path: Path) -> Examples | None:
        """Read examples to predict, whose right answers may be unknown."""
        return None


def files_of_clients(data: DataFolder, clients: int) -> list[ClientFiles]:
    """Take each file or folder in the data folder for one client's, in the order of their names."""
    paths = sorted(path for path in data.path.glob("*") if not path.name.startswith("."))
    if data.may_download or len(paths) < clients:
        where = "say where with --data DIR" if data.may_download else f"which has {len(paths)}"
        what = f"clients = {clients}: a file or folder of each client's own"
        raise UserError(f"{what} is not in the data folder {data.path}; {where}")
    return [ClientFiles(path.stem if path.is_file() else path.name, path) for path in paths[:clients]]


def mean_over_examples(measured: Sequence[Measured]) -> dict[str, float]:
    """Return the mean of each number over the examples of all clients; nothing where nobody has any."""
    counted = [one for one in measured if one.examples]
    total = sum(one.examples for one in counted)
    names = counted[0].means if counted else ()
    return {name: sum(one.examples * one.means[name] for one in counted) / total for name in names}
