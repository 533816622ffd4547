"""Data that is larger than memory: recordings in one file of raw numbers, each read when a batch asks for it.

PATH has train.f32 and test.f32: float32 numbers, a row of 1,023 samples and the recording's kind after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from common.learning.torch_task import Part, TorchTask

SAMPLES = 1023
ROW_BYTES = 4 * (SAMPLES + 1)


class Recordings(Dataset[tuple[Tensor, Tensor]]):
    """The rows of a file, of which none is kept in memory."""

    def __init__(self, file: Path) -> None:
        self.file, self.rows = file, file.stat().st_size // ROW_BYTES

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        row = torch.from_numpy(np.fromfile(self.file, np.float32, SAMPLES + 1, offset=ROW_BYTES * place))
        return row[:SAMPLES], row[SAMPLES].long()


@dataclass(frozen=True, kw_only=True)
class Kinds(TorchTask):
    """What kind of recording it is."""

    kinds: int = 4
    hidden: int = 64

    def module(self) -> nn.Module:
        """One hidden layer."""
        return nn.Sequential(nn.Linear(SAMPLES, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.kinds))

    def dataset(self, path: Path, part: Part) -> Recordings:
        """Return a client's own recordings."""
        return Recordings(path / f"{part}.f32")
