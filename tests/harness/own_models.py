"""Tasks as users write them: modules, datasets, losses and metrics of many kinds; worker processes import them too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from common.learning.batches import Batch
from common.learning.torch_task import Part, TorchTask

Sample = dict[str, Any] | tuple[Any, ...]
KINDS = 3
EXAMPLES = {"train": 40, "test": 10}


def points(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return points of several kinds, around a centre of each."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.arange(count) % KINDS
    return torch.randn(count, 4, generator=generator) + 3 * torch.eye(4)[kinds], kinds


class NoisyPoints(Dataset[Sample]):
    """Draws from all three sources of random numbers that a dataset may use."""

    def __init__(self, count: int) -> None:
        self.inputs, self.kinds = points(count)

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, place: int) -> Sample:
        noise = torch.randn(4) + float(np.random.randn()) + random.gauss(0, 1)
        return {"inputs": self.inputs[place] + 0.1 * noise, "labels": self.kinds[place]}


class PointStream(IterableDataset[Sample]):
    """The same as a stream, in an order that the epoch decides."""

    def __init__(self, count: int) -> None:
        self.points, self.epoch = NoisyPoints(count), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Sample]:
        for place in np.random.default_rng(self.epoch).permutation(len(self.points)):
            yield self.points[int(place)]


class Perceptron(nn.Module):
    """Takes a keyword, and has dropout, BatchNorm and constants of both kinds."""

    def __init__(self, outputs: int = KINDS) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.dropout, self.last = nn.Dropout(0.2), nn.Linear(8, outputs)
        self.register_buffer("positions", torch.arange(5))
        self.register_buffer("table", torch.randn(5), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.last(self.dropout(self.norm(self.first(inputs)).relu()))
        return scores


@dataclass(frozen=True, kw_only=True)
class Points(TorchTask):
    """Classes of points, as dicts of a map-style dataset."""

    batch_size: int = 8

    def module(self) -> nn.Module:
        return Perceptron()

    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        return NoisyPoints(EXAMPLES[part])


@dataclass(frozen=True, kw_only=True)
class Streamed(Points):
    """The same as a stream."""

    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        return PointStream(EXAMPLES[part])


@dataclass(frozen=True, kw_only=True)
class Weighted(Points):
    """Rare classes count more."""

    def module(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, KINDS))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        weights = torch.tensor([1.0, 1.0, 10.0])
        return nn.functional.cross_entropy(outputs, self.labels(batch), weights)

    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        return TensorDataset(*points(EXAMPLES[part]))


@dataclass(frozen=True, kw_only=True)
class Regression(TorchTask):
    """A number from four."""

    metric_names: ClassVar[tuple[str, ...]] = ("test_closeness", "test_squared_error")
    batch_size: int = 8

    def module(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))

    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        inputs, _ = points(EXAMPLES[part])
        return TensorDataset(inputs, inputs @ torch.tensor([1.0, -2.0, 0.5, 0.0]))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(outputs, batch[1])

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        error = (outputs - batch[1]).square()
        return {"test_closeness": -error.sqrt().sum(), "test_squared_error": error.sum()}


@dataclass(frozen=True, kw_only=True)
class Segmentation(TorchTask):
    """Which pixels are bright: a class for each, not for the picture."""

    batch_size: int = 8

    def module(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))

    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        pictures = torch.randn(EXAMPLES[part], 1, 6, 6, generator=torch.Generator().manual_seed(1))
        return TensorDataset(pictures, (pictures[:, 0] > 0).long())


@dataclass(frozen=True, kw_only=True)
class NextToken(TorchTask):
    """A language of one rule, each token being the last one's successor: examples are texts, and nothing else."""

    metric_names: ClassVar[tuple[str, ...]] = ("test_token_accuracy",)
    batch_size: int = 8
    tokens: int = 7

    def module(self) -> nn.Module:
        embedding, head = nn.Embedding(self.tokens, self.tokens), nn.Linear(self.tokens, self.tokens, bias=False)
        head.weight = embedding.weight  # tied, as language models have them
        return nn.Sequential(embedding, nn.Linear(self.tokens, self.tokens), head)

    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        texts = [{"text": (torch.arange(6) + place) % self.tokens} for place in range(EXAMPLES[part])]
        return cast("Dataset[Any]", texts)

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        scores: Tensor = module(batch["text"][:, :-1])
        return scores

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch["text"][:, 1:].flatten())

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"test_token_accuracy": (outputs.argmax(-1) == batch["text"][:, 1:]).float().mean(1).sum()}


@dataclass(frozen=True, kw_only=True)
class FineTuned(Points):
    """A frozen base, which a machine may have in another version, and a head that is trained."""

    base: float = 1.0

    def module(self) -> nn.Module:
        network = Perceptron()
        with torch.no_grad():
            network.first.weight.mul_(self.base)
        network.first.requires_grad_(False)
        return network
