"""A task of a user's own that quotes its data in an error, as our documentation asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from common.errors import UserError
from common.learning.task import ClientFiles, OwnDataProblem, OwnDataTask


@dataclass(frozen=True, kw_only=True)
class Talkative(OwnDataTask):
    """Fails for whatever data it is given."""

    def problem(self, parts: Sequence[ClientFiles], *, clients: int, seed: int, device: torch.device) -> OwnDataProblem:
        raise UserError(f"{parts[0].path}: hunter2 is no number; correct it")
