"""Tables of the clients' own (CSV, Parquet, npz): linear or softmax regression over columns that a schema declares.

The schema says what a column may hold, so that all clients scale alike and nobody looks at another's data:

    columns:
      age: 0..120             # a number, and its range
      smoker: no | yes        # a category, and its values

A client whose files do not fit refuses to take part, and names the column and the row. Its loss is

    f_i(w) = 1/rows sum_j loss(x_j, y_j; w) + ridge/2 |w|^2

over its own rows but those it holds out; rows is how many these are, or `rows_a_client` where rows are to count the
same whoever has them. The last feature is a constant 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.learning.blueprint import Blueprint, Input
from common.learning.examples import Examples
from common.learning.linear import SCALING, ScaledLinear, linear_tensors
from common.learning.objectives.least_squares import LeastSquares, ThinClient
from common.learning.objectives.softmax import Samples, SoftmaxRegression
from common.learning.partition import hold_out
from common.learning.schema import Category, Missing, Number, Scaling, TableFeatures, missing_entries, read_kind
from common.learning.tables import Column, column_names, read_columns, table_files
from common.learning.task import ClientFiles, Measured, OwnDataProblem, OwnDataTask
from common.ranges import Range
from common.rounds.objective import Objective
from common.rounds.state import ServerState

_Matrix = NDArray[np.float64]
_MOST_FEATURES = 10_000  # a row of a client's takes eight bytes for each
_MOST_WEIGHTS = 10_000_000


@dataclass(frozen=True)
class Rows:
    """One client's rows: features and targets, to train on and held out."""

    train: _Matrix
    train_targets: NDArray[np.float64]
    held_out: _Matrix
    held_out_targets: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Tabular(OwnDataTask):
    """Regression or classification on tables that stay where they are."""

    target: str  # the column to predict
    columns: Mapping[str, str] = field(default_factory=dict)  # all others that are used: LOW..HIGH, or A | B | C
    classes: str = ""  # A | B | C: softmax regression; else the target is a number, and it is linear regression
    scaling: Scaling = "range"
    missing: Missing = "refuse"
    test_fraction: Annotated[float, Range(at_least=0, below=1)] = 0.2  # of each client's rows
    ridge: Annotated[float, Range(at_least=0)] = 1e-3
    rows_a_client: Annotated[float, Range(above=0)] | None = None  # null: as many as it has

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("columns is empty: name the columns to learn from, such as age: 0..120")
        if self.target in self.columns:
            raise ValueError(f"target = {self.target} is among the columns to learn from")
        outputs = self.labels.size if self.labels else 1
        if self.features > _MOST_FEATURES or outputs * self.features > _MOST_WEIGHTS:
            raise ValueError(
                f"columns make {self.features} features, for {outputs} outputs: the most are "
                f"{_MOST_FEATURES}, and {_MOST_WEIGHTS} weights"
            )

    @cached_property
    def kinds(self) -> dict[str, Number | Category]:
        """Return the columns to learn from."""
        return {name: read_kind(name, text) for name, text in self.columns.items()}

    @cached_property
    def labels(self) -> Category | None:
        """Return what the target may be, if it is a category."""
        kind = read_kind("classes", self.classes) if self.classes else None
        if isinstance(kind, Number):
            raise ValueError("classes: expected different values A | B | C")
        return kind

    @cached_property
    def table_features(self) -> TableFeatures:
        """Return what makes features of the columns."""
        return TableFeatures(list(self.kinds.values()), self.scaling, self.missing)

    @property
    def features(self) -> int:
        """Return how many features a row has, with the constant 1."""
        return sum(kind.size + (self.missing == "indicate") for kind in self.kinds.values()) + 1

    def problem(self, parts: Sequence[ClientFiles], *, clients: int, seed: int, device: torch.device) -> TabularProblem:
        """Read the tables of the clients at hand."""
        rows = [self._rows(part, seed) for part in parts]
        kind = LinearProblem if self.labels is None else SoftmaxTableProblem
        return kind(self, rows, clients=clients, features=self.features, device=device)

    def blueprint(self) -> Blueprint:
        """Return what the model is."""
        classes = self.labels.values if self.labels else ()
        return Blueprint(
            module=ScaledLinear(self.features - 1, len(classes) or 1),
            inputs=tuple(_input(name, kind) for name, kind in self.kinds.items()),
            scaling=SCALING,
            preparation=self.table_features,
            classes=classes,
            features=self.table_features.names(list(self.kinds)),
        )

    def read_examples(self, path: Path) -> Examples:
        """Read tables to predict, with or without the column of the target."""
        names, tables, targets = [], [], []
        for file in table_files(path):
            known = [self.target] if self.target in column_names(file) else []
            table = read_columns(file, [*self.columns, *known])
            tables.append(self._inputs(table))
            rows = len(tables[-1][0])
            names += [f"{file.name}:{row + 1}" for row in range(rows)]
            targets.append(self._targets(table[self.target]) if known else np.full(rows, np.nan))
        inputs = tuple(torch.cat(column) for column in zip(*tables, strict=True))
        return Examples(names=names, inputs=inputs, targets=np.concatenate(targets))

    def _rows(self, part: ClientFiles, seed: int) -> Rows:
        """Return a client's rows, some of them held out: always the same ones."""
        tables = [self._read(read_columns(file, [*self.columns, self.target])) for file in table_files(part.path)]
        features, targets = np.vstack([table[0] for table in tables]), np.concatenate([table[1] for table in tables])
        count = min(round(self.test_fraction * len(targets)), len(targets) - 1)
        trained, held_out = hold_out(count, len(targets), part.client, seed)
        return Rows(features[trained], targets[trained], features[held_out], targets[held_out])

    def _read(self, table: Mapping[str, Column]) -> tuple[_Matrix, NDArray[np.float64]]:
        """Return scaled features, with the constant 1, and targets."""
        low, span = self.table_features.scale()
        scaled = (self.table_features(*self._inputs(table)) - low) / span
        targets = self._targets(table[self.target])
        if (missing := np.isnan(targets)).any():
            raise table[self.target].refuse(int(missing.argmax()), "is missing, and it is what is to be learned")
        return np.hstack([scaled.numpy(), np.ones((len(targets), 1))]), targets

    def _inputs(self, table: Mapping[str, Column]) -> list[Tensor]:
        """Return the entries of the columns to learn from: numbers, or places among a category's values."""
        inputs = []
        for name, kind in self.kinds.items():
            entries = torch.from_numpy(kind.entries(table[name]))
            missing = missing_entries(entries)
            if self.missing == "refuse" and missing.any():
                row = int(missing.byte().argmax())
                raise table[name].refuse(row, "is missing; the task's `missing` could allow that")
            inputs.append(entries)
        return inputs

    def _targets(self, column: Column) -> NDArray[np.float64]:
        """Return numbers, or the places of classes; NaN where one is missing."""
        if self.labels is not None:
            places = self.labels.entries(column)
            return np.where(places < 0, np.nan, places)
        targets = column.numbers()
        if np.isinf(targets).any():
            raise column.refuse(int(np.isinf(targets).argmax()), "is not a finite number")
        return targets


class TabularProblem(OwnDataProblem):
    """The rows of the clients at hand."""

    data_name = "tables of the clients' own"
    batched: ClassVar[bool] = True
    outputs = 1

    def __init__(
        self, task: Tabular, rows: Sequence[Rows], *, clients: int, features: int, device: torch.device
    ) -> None:
        self.clients = clients
        self._task = task
        self._rows = rows
        self._features = features
        self._device = device

    def initial_state(self) -> ServerState:
        """Start at zero, which is sparse."""
        return ServerState(model=torch.zeros(self.outputs * self._features))

    def tensors(self, state: ServerState) -> dict[str, Tensor]:
        """Return a model as weight, bias, and the scale of its features."""
        low, span = self._task.table_features.scale()
        return {**linear_tensors(state.model, self.outputs), "low": low, "span": span}

    def _weight(self, rows: Rows) -> float:
        """Return what one row counts in its client's loss."""
        return 1 / (self._task.rows_a_client or max(1, len(rows.train)))


class LinearProblem(TabularProblem):
    """Linear regression; R^2 over the rows that all clients hold out."""

    metric: str = "test_r2"
    measured: frozenset[str] = frozenset({"squared_error", "target", "target_square"})

    def objective(self, clients: Sequence[int]) -> Objective:
        """Return the ridge loss of these clients."""
        thin = []
        for rows in (self._rows[client] for client in clients):
            root = self._weight(rows) ** 0.5
            thin.append(ThinClient.of(root * rows.train, root * rows.train_targets))
        return LeastSquares(thin, self._task.ridge, self._device)

    def measure(self, state: ServerState) -> list[Measured]:
        """Return the means of which R^2 is made."""
        weights = state.model.double().numpy(force=True)
        return [
            Measured(
                len(rows.held_out),
                {
                    "squared_error": _mean(np.square(rows.held_out @ weights - rows.held_out_targets)),
                    "target": _mean(rows.held_out_targets),
                    "target_square": _mean(np.square(rows.held_out_targets)),
                },
            )
            for rows in self._rows
        ]

    def summarize(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the share of the targets' variance that the model explains, and the mean squared error."""
        if not means:
            return {}
        variance = means["target_square"] - means["target"] ** 2
        explained = 1 - means["squared_error"] / variance if variance > 0 else 0.0
        return {"test_r2": explained, "test_squared_error": means["squared_error"]}


class SoftmaxTableProblem(TabularProblem):
    """Softmax regression; accuracy over the rows that all clients hold out."""

    metric: str = "test_accuracy"
    measured: frozenset[str] = frozenset({"test_accuracy"})

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """Return the number of classes."""
        assert self._task.labels is not None
        return self._task.labels.size

    def objective(self, clients: Sequence[int]) -> Objective:
        """Return the cross-entropy of these clients."""
        rows = [self._rows[client] for client in clients]
        samples = [Samples(one.train[:, :-1].astype(np.float32), one.train_targets.astype(np.int64)) for one in rows]
        return SoftmaxRegression(
            samples,
            classes=self.outputs,
            sample_weights=[self._weight(one) for one in rows],
            ridge=self._task.ridge,
            device=self._device,
        )

    def measure(self, state: ServerState) -> list[Measured]:
        """Return each client's accuracy."""
        weights = state.model.double().numpy(force=True).reshape(self.outputs, -1)
        return [
            Measured(
                len(rows.held_out),
                {"test_accuracy": _mean((rows.held_out @ weights.T).argmax(1) == rows.held_out_targets)},
            )
            for rows in self._rows
        ]


def _input(name: str, kind: Number | Category) -> Input:
    if isinstance(kind, Number):
        return Input(name=name, example=torch.full((2,), kind.low, dtype=torch.float64))
    return Input(name=name, example=torch.zeros(2, dtype=torch.int64), values=kind.values)


def _mean(values: NDArray[np.float64] | NDArray[np.bool_]) -> float:
    return float(values.mean()) if values.size else 0.0
