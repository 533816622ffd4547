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
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from common.learning.objectives.least_squares import LeastSquares, ThinClient
from common.learning.objectives.softmax import Samples, SoftmaxRegression
from common.learning.partition import hold_out
from common.learning.tables import Column, read_columns, table_files
from common.learning.task import ClientFiles, Measured, OwnDataProblem, OwnDataTask
from common.ranges import LARGEST, Range
from common.rounds.objective import Objective
from common.rounds.state import ServerState

_Matrix = NDArray[np.float64]
_MOST_FEATURES = 10_000  # a row of a client's takes eight bytes for each
_MOST_WEIGHTS = 10_000_000


@dataclass(frozen=True)
class Number:
    """A column of numbers within a range."""

    low: float
    high: float

    def features(self, column: Column, scaling: str) -> _Matrix:
        """Return the scaled numbers, as one feature; NaN where one is missing."""
        numbers = column.numbers()
        outside = np.flatnonzero((numbers < self.low) | (numbers > self.high) | np.isinf(numbers))
        if outside.size:
            raise column.refuse(int(outside[0]), f"is beyond its range in the schema, {self.low:g}..{self.high:g}")
        if scaling == "range":
            scaled = (numbers - self.low) / ((self.high - self.low) or 1.0)
        else:
            scaled = numbers / (max(abs(self.low), abs(self.high)) or 1.0)
        return scaled[:, None]

    @property
    def size(self) -> int:
        """Return how many features it makes."""
        return 1


@dataclass(frozen=True)
class Category:
    """A column with one of some values."""

    values: tuple[str, ...]

    def features(self, column: Column, scaling: str) -> _Matrix:
        """Return one feature a value, which is 1 where the column has it; all NaN where it is missing."""
        codes = self.codes(column)
        features: _Matrix = (codes[:, None] == np.arange(self.size)).astype(np.float64)
        features[codes < 0] = np.nan
        return features

    def codes(self, column: Column) -> NDArray[np.int64]:
        """Return the place of each entry among the values; -1 where it is missing.

        A value that the schema names is never missing, whatever it looks like.
        """
        matches = column.words()[:, None] == np.array(self.values)[None, :]
        unknown = np.flatnonzero(~matches.any(1) & ~column.is_blank())
        if unknown.size:
            raise column.refuse(int(unknown[0]), f"is none of its values in the schema, {' | '.join(self.values)}")
        return np.where(matches.any(1), matches.argmax(1), -1)

    @property
    def size(self) -> int:
        """Return how many features it makes."""
        return len(self.values)


def read_kind(name: str, text: str) -> Number | Category:
    """Read `LOW..HIGH` or `A | B | C`."""
    low, dots, high = text.partition("..")
    if dots:
        try:
            kind = Number(float(low), float(high))
        except ValueError:
            raise ValueError(f"columns.{name} = {text!r}: expected a range of numbers, such as 0..120") from None
        if not -LARGEST < kind.low <= kind.high < LARGEST:
            raise ValueError(f"columns.{name} = {text!r}: the lower end comes first, and both are below {LARGEST:g}")
        return kind
    values = tuple(value.strip() for value in text.split("|"))
    if len(values) < 2 or len(set(values)) < len(values) or not all(values):
        raise ValueError(f"columns.{name} = {text!r}: expected a range LOW..HIGH, or different values A | B | C")
    return Category(values)


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
    scaling: Literal["range", "largest"] = "range"  # LOW..HIGH to 0..1; or by the largest absolute value
    missing: Literal["refuse", "zero", "indicate"] = "refuse"  # a missing entry is 0; with a feature that says so
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

    @property
    def features(self) -> int:
        """Return how many features a row has, with the constant 1."""
        return sum(kind.size + (self.missing == "indicate") for kind in self.kinds.values()) + 1

    def problem(self, parts: Sequence[ClientFiles], *, clients: int, seed: int, device: torch.device) -> TabularProblem:
        """Read the tables of the clients at hand."""
        rows = [self._rows(part, seed) for part in parts]
        kind = LinearProblem if self.labels is None else SoftmaxTableProblem
        return kind(self, rows, clients=clients, features=self.features, device=device)

    def _rows(self, part: ClientFiles, seed: int) -> Rows:
        """Return a client's rows, some of them held out: always the same ones."""
        tables = [self._read(read_columns(file, [*self.columns, self.target])) for file in table_files(part.path)]
        features, targets = np.vstack([table[0] for table in tables]), np.concatenate([table[1] for table in tables])
        count = min(round(self.test_fraction * len(targets)), len(targets) - 1)
        trained, held_out = hold_out(count, len(targets), part.client, seed)
        return Rows(features[trained], targets[trained], features[held_out], targets[held_out])

    def _read(self, table: Mapping[str, Column]) -> tuple[_Matrix, NDArray[np.float64]]:
        """Return features, with the constant 1, and targets."""
        blocks = []
        for name, kind in self.kinds.items():
            features = kind.features(table[name], self.scaling)
            missing = np.isnan(features[:, 0])
            if self.missing == "refuse" and missing.any():
                raise table[name].refuse(int(missing.argmax()), "is missing; the task's `missing` could allow that")
            features[missing] = 0.0
            blocks.append(features)
            if self.missing == "indicate":
                blocks.append(missing.astype(np.float64)[:, None])
        target = table[self.target]
        targets = target.numbers() if self.labels is None else self.labels.codes(target).astype(np.float64)
        missing = np.isnan(targets) | ((targets < 0) & (self.labels is not None))
        if missing.any():
            raise target.refuse(int(missing.argmax()), "is missing, and it is what is to be learned")
        if np.isinf(targets).any():
            raise target.refuse(int(np.isinf(targets).argmax()), "is not a finite number")
        return np.hstack([*blocks, np.ones((len(targets), 1))]), targets


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

    def _weight(self, rows: Rows) -> float:
        """Return what one row counts in its client's loss."""
        return 1 / (self._task.rows_a_client or max(1, len(rows.train)))


class LinearProblem(TabularProblem):
    """Linear regression; R^2 over the rows that all clients hold out."""

    metric: ClassVar[str] = "test_r2"
    measured: ClassVar[frozenset[str]] = frozenset({"squared_error", "target", "target_square"})

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

    metric: ClassVar[str] = "test_accuracy"
    measured: ClassVar[frozenset[str]] = frozenset({"test_accuracy"})

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


def _mean(values: NDArray[np.float64] | NDArray[np.bool_]) -> float:
    return float(values.mean()) if values.size else 0.0
