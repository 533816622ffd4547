"""BlogFeedback (UCI): how many comments will a blog post get? Ridge regression over 554 blogs.

The set-up of the paper's Section 4.1 and Appendix B. A client is a blog: the rows that agree in their first 50 columns.
A constant 1 is appended to the features (d = 281). Where the paper leaves a choice we take what gives its Final-TopK
row (docs/results.md): features are divided by their largest absolute value, which keeps zeros zero, and the clients'
shares of the ridge term add up to ridge/2 |w|^2.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import UserError
from common.learning.blueprint import Blueprint, Input
from common.learning.data import DataFolder
from common.learning.examples import Examples, r_squared
from common.learning.linear import SCALING, ScaledLinear, linear_tensors
from common.learning.objectives.least_squares import LeastSquares, ThinClient
from common.learning.task import Problem, Task
from common.randomness import stream
from common.ranges import Range
from common.rounds.objective import Objective
from common.rounds.state import ServerState

ARCHIVE = "BlogFeedback.zip"
HOME = "https://archive.ics.uci.edu/ml/machine-learning-databases/00304/BlogFeedback.zip"
CONTENT_SHA256 = "73616d79314c5118d8363b8178f88d61ba98a8573db71f41b0c38d506b31c960"
TRAIN_FILE = "blogData_train.csv"
TEST_PREFIX = "blogData_test"
BLOG_COLUMNS = 50
FEATURES = 280

Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BlogFeedback(Task):
    """Ridge regression on the blogs as they are published."""

    validation_fraction: Annotated[float, Range(at_least=0, below=1)] = 0.1  # 0: train on all rows
    ridge: Annotated[float, Range(at_least=0)] = 1000.0  # alpha, over all clients together
    scaling: Literal["largest", "range"] = "largest"  # by the largest absolute value; or from minimum..maximum to 0..1

    def load(self, data: DataFolder, *, clients: int, seed: int, device: torch.device) -> Problem:
        """Read the archive; with fewer clients than blogs, take the first ones."""
        path = data.file(ARCHIVE, home=HOME, checksum=content_sha256, expected=CONTENT_SHA256)
        train, test = read_archive(path)
        blog = np.unique(train[:, :BLOG_COLUMNS], axis=0, return_inverse=True)[1].ravel()
        if clients > blog.max() + 1:
            raise UserError(f"clients = {clients}: BlogFeedback has {blog.max() + 1} blogs")
        low, high = self._ends(train[:, :FEATURES])
        features, targets = scale(train, low, high)
        order = stream(0, "validation").permutation(len(train))  # one split whatever the seed is, as the paper had one
        trained = np.zeros(len(train), dtype=bool)
        trained[order[: int((1 - self.validation_fraction) * len(train))]] = True
        members = [np.flatnonzero(trained & (blog == client)) for client in range(clients)]
        held_out = {"test": scale(test, low, high)}
        if not trained.all():
            held_out["validation"] = (features[~trained], targets[~trained])
        return BlogFeedbackProblem(
            clients=[(features[rows], targets[rows]) for rows in members],
            ridge=self.ridge / clients,
            held_out=held_out,
            scale={"low": torch.from_numpy(low), "span": torch.from_numpy(_span(low, high))},
            test=test,
            device=device,
        )

    def blueprint(self) -> Blueprint:
        """Return what the model is; its scale is that of the training rows."""
        return Blueprint(
            module=ScaledLinear(FEATURES, 1),
            inputs=(Input(name="features", example=torch.zeros(2, FEATURES, dtype=torch.float64)),),
            scaling=SCALING,
            features=tuple(f"column {number + 1}" for number in range(FEATURES)),
        )

    def _ends(self, features: Matrix) -> tuple[Matrix, Matrix]:
        """Return what becomes 0 and what becomes 1 of each feature."""
        if self.scaling == "range":
            return features.min(axis=0), features.max(axis=0)
        largest = np.abs(features).max(axis=0)
        return np.zeros_like(largest), largest


class BlogFeedbackProblem(Problem):
    """The blogs with their rows, and R^2 on held-out rows."""

    data_name = "UCI BlogFeedback"
    metric: str = "test_r2"
    batched: ClassVar[bool] = True

    def __init__(
        self,
        *,
        clients: Sequence[tuple[Matrix, Matrix]],
        ridge: float,
        held_out: dict[str, tuple[Matrix, Matrix]],
        scale: dict[str, Tensor],  # by which features were scaled: low and span
        test: Matrix,  # as the files have it
        device: torch.device,
    ) -> None:
        self.clients = len(clients)
        self._clients = clients
        self._ridge = ridge
        self._held_out = held_out
        self._scale = scale
        self._test = test
        self._device = device

    def initial_state(self) -> ServerState:
        """Start at zero, which is sparse (Appendix B)."""
        return ServerState(model=torch.zeros(FEATURES + 1))

    def objective(self, clients: Sequence[int]) -> Objective:
        """Return the ridge loss of these blogs."""
        thin = [ThinClient.of(*self._clients[client]) for client in clients]
        return LeastSquares(thin, self._ridge, self._device)

    def evaluate(self, state: ServerState) -> dict[str, float]:
        """Return R^2 on the test files, and on the validation rows where there are any."""
        weights = state.model.double().numpy(force=True)
        held_out = self._held_out.items()
        return {f"{part}_r2": r_squared(features @ weights, targets) for part, (features, targets) in held_out}

    def tensors(self, state: ServerState) -> dict[str, Tensor]:
        """Return a model as weight, bias, and the scale of its features."""
        return {**linear_tensors(state.model, 1), **self._scale}

    def examples(self) -> Examples:
        """Return the rows of the test files."""
        names = [str(number + 1) for number in range(len(self._test))]
        features = torch.from_numpy(self._test[:, :FEATURES])
        return Examples(names=names, inputs=(features,), targets=self._test[:, FEATURES])


def scale(rows: Matrix, low: Matrix, high: Matrix) -> tuple[Matrix, Matrix]:
    """Return scaled features with the constant 1, and targets."""
    ones = np.ones((len(rows), 1))
    return np.hstack([(rows[:, :FEATURES] - low) / _span(low, high), ones]), rows[:, FEATURES]


def _span(low: Matrix, high: Matrix) -> Matrix:
    return np.where(high > low, high - low, 1.0)


def read_archive(path: Path) -> tuple[Matrix, Matrix]:
    """Return the training rows and the rows of all test files."""
    try:
        with zipfile.ZipFile(path) as archive:
            tests = sorted(name for name in archive.namelist() if name.startswith(TEST_PREFIX))
            if TRAIN_FILE not in archive.namelist() or not tests:
                raise UserError(f"{path} lacks {TRAIN_FILE} or {TEST_PREFIX}*.csv; download it again from {HOME}")
            return _read_csv(archive, TRAIN_FILE), np.vstack([_read_csv(archive, name) for name in tests])
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, RuntimeError, zlib.error) as error:
        raise UserError(f"{path} is damaged ({error}); download it again from {HOME}") from None


def content_sha256(path: Path) -> str:
    """Return a checksum of the CSV files in an archive, however they were packed."""
    try:
        with zipfile.ZipFile(path) as archive:
            lines = sorted(f"{m.filename} {m.file_size} {m.CRC}" for m in archive.infolist() if m.file_size)
    except zipfile.BadZipFile:
        return "of something that is no zip archive"
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _read_csv(archive: zipfile.ZipFile, name: str) -> Matrix:
    if archive.getinfo(name).file_size == 0:
        raise ValueError(f"{name} is empty")
    with archive.open(name) as file:
        rows = np.loadtxt(file, delimiter=",", ndmin=2)
    if rows.shape[1] != FEATURES + 1:
        raise ValueError(f"{name} has {rows.shape[1]} columns, not {FEATURES + 1}")
    if not np.isfinite(rows).all():
        raise ValueError(f"{name} has entries that are no finite numbers")
    return rows
