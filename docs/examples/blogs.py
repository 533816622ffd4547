"""An MLP on tables of one's own, with its own loss and metric: how many comments a post will get in a day.

PATH is a CSV file without a header, a post per row; the last column is the number of comments. A client holds out the
last fifth of its posts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from common.learning.torch_task import Part, TorchTask

COLUMNS = 280
TEST_FRACTION = 0.2
MEAN, DEVIATION = 0.8, 1.2  # of log(1 + comments), agreed upon beforehand


@dataclass(frozen=True, kw_only=True)
class Blogs(TorchTask):
    """The logarithm of a post's comments."""

    metric_names: ClassVar[tuple[str, ...]] = ("test_r2",)  # 0: no better than the mean, 1: right

    hidden: int = 64

    def module(self) -> nn.Module:
        """Two hidden layers."""
        widths = [COLUMNS, self.hidden, self.hidden]
        layers = [nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in pairwise(widths)]
        return nn.Sequential(*layers, nn.Linear(self.hidden, 1), nn.Flatten(0))

    def dataset(self, path: Path, part: Part) -> TensorDataset:
        """Read a client's own table; counts of anything become their logarithms."""
        rows = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))
        rows = rows.sign() * rows.abs().log1p()
        held_out = int(TEST_FRACTION * len(rows))
        kept = rows[-held_out:] if part == "test" else rows[:-held_out]
        return TensorDataset(kept[:, :COLUMNS], (kept[:, COLUMNS] - MEAN) / DEVIATION)

    def loss(self, outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean squared error."""
        return nn.functional.mse_loss(outputs, self.labels(batch))

    def metrics(self, outputs: Tensor, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return sums over the posts; their variance is 1."""
        return {"test_r2": (1 - (outputs - self.labels(batch)).square()).sum()}
