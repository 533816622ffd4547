"""Pictures as bytes: how they are shown to a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from common.learning.batches import Batch, InMemory
from common.learning.blueprint import Blueprint, Input
from common.learning.network_task import NetworkTask
from common.ranges import Range

# Of CIFAR-10's channels; near those of any photographs.
CHANNEL_MEAN = (0.4914, 0.4822, 0.4465)
CHANNEL_DEVIATION = (0.2470, 0.2435, 0.2616)
SHIFT_SHARE = 8  # a picture is shifted by up to an eighth of its side


@dataclass(frozen=True)
class Images:
    """Pictures (n, 3, side, side) of bytes and their labels (n,)."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> Images:
        """Return some of the pictures, by their places or by a mask."""
        return Images(self.pixels[chosen], self.labels[chosen])

    def dataset(self) -> TensorDataset:
        """Return them as torch has them."""
        return TensorDataset(torch.from_numpy(self.pixels), torch.from_numpy(self.labels))


@dataclass(frozen=True, kw_only=True)
class ImageTask(NetworkTask):
    """A task that trains a network on pictures."""

    batch_size: Annotated[int, Range(at_least=2, at_most=4096)] = 32
    weight_decay: Annotated[float, Range(at_least=0)] = 1e-4

    def in_memory(self, examples: Sequence[Tensor], device: torch.device) -> InMemory:
        """Return batches of pictures, which are mirrored and shifted in training."""
        return Pictures(examples, device, batch_size=self.batch_size, at_once=self.at_once)

    def transform(self, batch: Batch, generator: torch.Generator | None) -> Batch:
        """Scale the pictures."""
        pixels, labels = batch
        return _normalized_on(pixels.device)(pixels), labels


class Pictures(InMemory):
    """Pictures and their labels; an epoch mirrors half of them, and shifts each by up to an eighth of its side.

    Where each row and column of pixels comes from is known before an epoch begins: a step then takes its pictures out
    as it shows them. What comes from beyond an edge comes from a row and a column of zeros.
    """

    def __init__(self, tensors: Sequence[Tensor], device: torch.device, *, batch_size: int, at_once: int) -> None:
        super().__init__(tensors, device, batch_size=batch_size, at_once=at_once)
        self._framed: Tensor | None = None  # with these zeros; only what is trained on needs them

    def _epoch(self, places: Tensor, generator: torch.Generator) -> Iterator[Batch]:
        pixels, labels = self._tensors
        if self._framed is None:
            self._framed = nn.functional.pad(pixels, (0, 1, 0, 1))
            self._tensors = self._framed[..., :-1, :-1], labels
        rows, columns = self._moved(len(places), generator)
        *_, channels, _, wide = self._framed.shape
        channel = torch.arange(channels, device=pixels.device)[:, None]
        begins = (wide * ((places[:, None, None] * channels + channel) * wide + rows[:, None]))[..., None]
        for chosen, begin, column in zip(
            *(torch.split(one, self._at_once) for one in (places, begins, columns)), strict=True
        ):
            yield self._framed.take(begin + column[:, None, None]), labels[chosen]

    def _moved(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw from which rows and columns so many pictures come."""
        side, device = self._tensors[0].shape[-1], self._tensors[0].device
        most = side // SHIFT_SHARE
        mirrored, shift = [], []
        # On a CPU for one step after the other: a seed shall stand for what it has always stood for.
        for size in (self._at_once,) * (count // self._at_once) if device.type == "cpu" else (count,):
            mirrored.append(torch.rand(size, 1, generator=generator, device=device) < 1 / 2)
            shift.append(torch.randint(2 * most + 1, (2, size, 1), generator=generator, device=device))
        rows, columns = torch.cat(shift, dim=1) - most + torch.arange(side, device=device)
        columns = torch.where(torch.cat(mirrored), side - 1 - columns, columns)
        rows, columns = (torch.where((one >= 0) & (one < side), one, side) for one in (rows, columns))
        return rows, columns


class Normalized(nn.Module):
    """Makes what a network takes of pictures as bytes."""

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(CHANNEL_MEAN)[:, None, None], persistent=False)
        self.register_buffer("deviation", torch.tensor(CHANNEL_DEVIATION)[:, None, None], persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return numbers of mean 0 and deviation 1 for each channel."""
        return (pixels / 255).sub_(self.mean).div_(self.deviation)


@cache
def _normalized_on(device: torch.device) -> Normalized:
    """Return it with its constants on a device, where they stay."""
    return Normalized().to(device)


def image_blueprint(network: nn.Module, side: int, classes: tuple[str, ...]) -> Blueprint:
    """Return what a network is that classifies square pictures."""
    return Blueprint(
        module=network,
        inputs=(Input(name="pixels", example=torch.zeros(2, 3, side, side, dtype=torch.uint8)),),
        scaling=f"(x / 255 - mean) / deviation; by channel, mean {CHANNEL_MEAN}, deviation {CHANNEL_DEVIATION}",
        preparation=Normalized(),
        classes=classes,
    )
