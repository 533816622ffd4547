"""FedAvg that a test can hold in mid-computation: named to a program as `tests.harness.held:Held`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from common.rounds.algorithm import LocalWork
from common.rounds.state import RoundPlan
from strategies.fedavg import FedAvg

NAME = "tests.harness.held:Held"
REPOSITORY = Path(__file__).parent.parent.parent  # where a program must be started to find it
_FOLDER = "HELD_FOLDER"
_RELEASED = "released"


@dataclass(frozen=True, kw_only=True)
class Held(FedAvg, dense=True):
    """FedAvg whose steps go on and on until the test releases them."""

    def local_step(self, plan: RoundPlan, weights: Tensor, local: LocalWork) -> Tensor:
        folder = Path(os.environ[_FOLDER])
        (folder / str(os.getpid())).touch()
        while not (folder / _RELEASED).exists():
            torch.ones(64, 64).square_().sum()
        return super().local_step(plan, weights, local)


def environment(folder: Path) -> Mapping[str, str]:
    """Return the environment of a program whose held processes leave their ids in a folder."""
    return {**os.environ, _FOLDER: str(folder)}


def computing(folder: Path) -> set[int]:
    """Return the processes that have begun to compute."""
    return {int(path.name) for path in folder.iterdir() if path.name.isdecimal()}


def release(folder: Path) -> None:
    (folder / _RELEASED).touch()
