"""Pictures as bytes: how they are shown to a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.learning.blueprint import Blueprint, Input
from common.learning.objectives.network import FlatModule, NetworkObjective
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

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return pixels and labels where they are computed with."""
        return torch.from_numpy(self.pixels).to(device), torch.from_numpy(self.labels).to(device)


@dataclass(frozen=True, kw_only=True)
class ImageTraining:
    """The options of a task that trains a network on pictures."""

    batch_size: Annotated[int, Range(at_least=2, at_most=4096)] = 32
    gradient_clip_norm: Annotated[float, Range(above=0)] = 50.0
    weight_decay: Annotated[float, Range(at_least=0)] = 1e-4
    loss_samples: Annotated[int, Range(at_least=1, at_most=10_000)] = 256  # of each client, for train_loss

    def objective(
        self, network: FlatModule, images: tuple[Tensor, Tensor], *, seed: int, client: int
    ) -> NetworkObjective:
        """Return the loss of one client's pictures."""
        return NetworkObjective(
            network,
            *images,
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
            gradient_clip_norm=self.gradient_clip_norm,
            augment=flip_and_crop,
            normalize=normalize,
            loss_samples=self.loss_samples,
            seed=seed,
            client=client,
        )


class Normalized(nn.Module):
    """Makes what a network takes of pictures as bytes."""

    def forward(self, pixels: Tensor) -> Tensor:
        """Return numbers of mean 0 and deviation 1 for each channel."""
        return normalize(pixels)


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
    """Mirror half of the images and shift each by up to an eighth of its side."""
    count, side = len(pixels), pixels.shape[-1]
    most = side // SHIFT_SHARE
    flipped = torch.rand(count, generator=generator).to(pixels.device) < 1 / 2
    pixels = torch.where(flipped[:, None, None, None], pixels.flip(-1), pixels)
    padded = nn.functional.pad(pixels, (most,) * 4)
    shift = torch.randint(2 * most + 1, (2, count, 1), generator=generator).to(pixels.device)
    rows, columns = shift + torch.arange(side, device=pixels.device)
    image = torch.arange(count, device=pixels.device)
    shifted = padded[image[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    # Left in its channels-last layout, torch 2.13 corrupts memory in CPU convolutions of fewer than 8 channels.
    return shifted.contiguous()


def normalize(pixels: Tensor) -> Tensor:
    """Turn bytes into numbers of mean 0 and deviation 1 a channel."""
    mean = torch.tensor(CHANNEL_MEAN, device=pixels.device)[:, None, None]
    deviation = torch.tensor(CHANNEL_DEVIATION, device=pixels.device)[:, None, None]
    return (pixels / 255 - mean) / deviation


def accuracy(network: nn.Module, pixels: Tensor, labels: Tensor, batch_size: int) -> float:
    """Return the share of pictures that a network puts into the right class."""
    if not len(labels):
        return 0.0
    network.eval()
    with torch.no_grad():
        scores = [network(normalize(batch)) for batch in torch.split(pixels, batch_size)]
    return int((torch.cat(scores).argmax(1) == labels).sum()) / len(labels)
