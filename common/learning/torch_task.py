"""A model and data of one's own: a torch module, and a Dataset for each client."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import Dataset

import common.learning.vision  # noqa: F401 - so that a user's own import of torchvision works as well
from common.learning.network_problem import ClientData, OwnNetworkProblem
from common.learning.network_task import NetworkTask
from common.learning.own_code import own_code
from common.learning.task import ClientFiles, OwnDataTask
from common.randomness import all_streams, seed_all, torch_stream

Part = Literal["train", "test"]


@dataclass(frozen=True, kw_only=True)
class TorchTask(NetworkTask, OwnDataTask):
    """Any torch module on any Dataset: `module` and `dataset` are all that it needs."""

    @abstractmethod
    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        """Return a client's examples, to train on or held out; map-style or iterable."""

    def problem(
        self, parts: Sequence[ClientFiles], *, clients: int, seed: int, device: torch.device
    ) -> OwnNetworkProblem:
        """Make the datasets of the clients at hand."""
        data = [ClientData(one.client, self._made(one, "train", seed), self._made(one, "test", seed)) for one in parts]
        return OwnNetworkProblem(self, data, clients=clients, seed=seed, device=device)

    def _made(self, files: ClientFiles, part: Part, seed: int) -> Dataset[Any]:
        """Make a part of a client's data; both draw the same random numbers, so that a random split is one split."""
        drawn = torch_stream(seed, "dataset", zlib.crc32(files.client.encode()))
        with own_code(self, f"dataset({part}) of {files.client}"), all_streams():
            seed_all(drawn.initial_seed())
            return self.dataset(files.path, part)
