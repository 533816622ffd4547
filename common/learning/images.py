"""Pictures as bytes: how they are shown to a network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from common.learning.batches import Batch
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

    def transform(self, batch: Batch, generator: torch.Generator | None) -> Batch:
        """Mirror and shift the pictures in training, and scale them."""
        pixels, labels = batch
        seen = pixels if generator is None else flip_and_crop(pixels, generator)
        return _normalized_on(pixels.device)(seen), labels


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


def flip_and_crop(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images and shift each by up to an eighth of its side: where each pixel comes from, at once."""
    count, channels, side, _ = pixels.shape
    most = side // SHIFT_SHARE
    wide = side + 2 * most
    flipped = torch.rand(count, 1, generator=generator, device=pixels.device) < 1 / 2
    shift = torch.randint(2 * most + 1, (2, count, 1), generator=generator, device=pixels.device)
    rows, columns = shift + torch.arange(side, device=pixels.device)
    columns = torch.where(flipped, wide - 1 - columns, columns)
    places = (wide * rows)[:, :, None] + columns[:, None, :]
    padded = nn.functional.pad(pixels, (most,) * 4).flatten(2)
    return padded.gather(2, places.view(count, 1, -1).expand(-1, channels, -1)).view(pixels.shape)
