"""A CNN on pictures of one's own: PATH/train/KIND/*.jpg and PATH/test/KIND/*.jpg, of 32 by 32 pixels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from common.learning.torch_task import Part, TorchTask
from common.learning.vision import torchvision


class Folder(Dataset[tuple[Tensor, int]]):
    """The pictures in folders by kind; a client may lack some kinds."""

    def __init__(self, folder: Path, kinds: tuple[str, ...]) -> None:
        self.files = [
            (file, number) for number, kind in enumerate(kinds) for file in sorted((folder / kind).glob("*.jpg"))
        ]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        file, number = self.files[place]
        with Image.open(file) as picture:
            return torchvision.transforms.functional.pil_to_tensor(picture.convert("RGB")), number


@dataclass(frozen=True, kw_only=True)
class Pictures(TorchTask):
    """Which kind of thing a picture shows."""

    kinds: tuple[str, ...]
    width: int = 16

    def module(self) -> nn.Module:
        """Three blocks, each of which halves the picture."""
        channels = [3, self.width, 2 * self.width, 4 * self.width]
        blocks = [
            nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))
            for inputs, outputs in pairwise(channels)
        ]
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * 4 * channels[-1], len(self.kinds)))

    def dataset(self, path: Path, part: Part) -> Folder:
        """Return a client's own pictures."""
        return Folder(path / part, self.kinds)

    def transform(self, batch: tuple[Tensor, Tensor], generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Make numbers from -1 to 1 of bytes, on the device."""
        pictures, kinds = batch
        return pictures / 127.5 - 1, kinds
