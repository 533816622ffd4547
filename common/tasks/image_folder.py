"""Images of the clients' own, in folders by class (PATH/CLASS/*.jpg, as torchvision's ImageFolder): a network.

The experiment declares the classes, so that all clients number them alike, also those who have none of some. Images
are scaled and cropped to `image_size`, and kept in memory as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import nn

from common.errors import UserError
from common.learning.blueprint import Blueprint
from common.learning.examples import Examples
from common.learning.images import Images, ImageTask, image_blueprint
from common.learning.network_problem import ClientData, OwnNetworkProblem
from common.learning.networks import NetworkName, network_of
from common.learning.partition import hold_out
from common.learning.task import ClientFiles, OwnDataTask
from common.learning.vision import torchvision
from common.ranges import Range

_MOST_CLASSES = 1_000
_MOST_PIXELS_AT_ONCE = 1 << 25  # some 500 bytes are taken for each
_MOST_PIXELS_OF_A_LOSS = 1 << 27  # one part after the other: this is a matter of time


@dataclass(frozen=True, kw_only=True)
class ImageFolder(ImageTask, OwnDataTask):
    """Image classification on folders that stay where they are."""

    classes: tuple[str, ...]
    network: NetworkName = "resnet18"  # resnet18_small: for images of about 32 pixels
    image_size: Annotated[int, Range(at_least=8, at_most=1024)] = 128  # pixels
    test_fraction: Annotated[float, Range(at_least=0, below=1)] = 0.2  # of each client's images

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: name at least two, each once, such as [cat, dog]")
        if len(self.classes) > _MOST_CLASSES:
            raise ValueError(f"classes: {len(self.classes)}, where {_MOST_CLASSES} are the most")
        self._refuse_more_pixels("micro_batch" if self.micro_batch else "batch_size", _MOST_PIXELS_AT_ONCE)
        self._refuse_more_pixels("loss_samples", _MOST_PIXELS_OF_A_LOSS)

    def _refuse_more_pixels(self, name: str, most: int) -> None:
        count, largest = getattr(self, name), most // self.image_size**2
        if count > largest:
            raise ValueError(f"{name} = {count}: at most {largest} with image_size = {self.image_size}")

    def problem(
        self, parts: Sequence[ClientFiles], *, clients: int, seed: int, device: torch.device
    ) -> ImageFolderProblem:
        """Read the images of the clients at hand."""
        data = [self._split(part.client, self._read(part.path), seed) for part in parts]
        return ImageFolderProblem(self, data, clients=clients, seed=seed, device=device)

    def module(self) -> nn.Module:
        """Return the network."""
        return network_of(self.network, len(self.classes))

    def blueprint(self) -> Blueprint:
        """Return what the model is."""
        return image_blueprint(self.module(), self.image_size, self.classes)

    def read_examples(self, path: Path) -> Examples:
        """Read images in folders by class, as clients have them, or of which nobody knows the class."""
        labelled: list[tuple[str, float]] = [*self._files(path)]
        files = labelled or [(file, np.nan) for file in _images_in(path)]
        if not files:
            raise UserError(f"{path}: there are no images in it, nor in CLASS/ folders of {', '.join(self.classes)}")
        return Examples(
            names=[str(Path(file).relative_to(path)) for file, _ in files],
            inputs=(torch.from_numpy(np.stack([self._decode(file) for file, _ in files])),),
            targets=np.array([label for _, label in files], dtype=np.float64),
        )

    def _read(self, path: Path) -> Images:
        """Decode all images of a client."""
        files = self._files(path)
        if not files:
            raise UserError(f"{path}: there are no images in CLASS/ folders of {', '.join(self.classes)}")
        pixels = np.stack([self._decode(file) for file, _ in files])
        return Images(pixels, np.array([label for _, label in files], dtype=np.int64))

    def _split(self, client: str, images: Images, seed: int) -> ClientData:
        """Return what a client trains on and what it holds out: always the same images."""
        count = round(self.test_fraction * len(images.labels))
        if len(images.labels) - count < 2:
            found = f"{client} has {len(images.labels)} images, {count} of them held out"
            raise UserError(f"{found}: it needs two to train on")
        trained, held_out = hold_out(count, len(images.labels), client, seed)
        return ClientData(client, images.take(trained).dataset(), images.take(held_out).dataset())

    def _decode(self, file: str) -> NDArray[np.uint8]:
        try:
            with Image.open(file) as image:
                if image.mode.startswith(("I", "F")):  # which a conversion would cut off at 255
                    raise ValueError(f"its pixels have more than 8 bits (mode {image.mode}); convert it first")
                return _square(image.convert("RGB"), self.image_size)
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError) as error:
            raise UserError(f"{file} cannot be read as an image: {error}") from None

    def _files(self, path: Path) -> list[tuple[str, int]]:
        """Return each image's file and the number of its class; refuse a folder that is none of the classes."""
        if not path.is_dir():
            raise UserError(f"{path} is not a folder of images, CLASS/*.jpg")
        folders = sorted(one.name for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
        if unknown := [name for name in folders if name not in self.classes]:
            raise UserError(
                f"{path / unknown[0]} is none of the experiment's classes: {', '.join(self.classes)}",
                public="its data does not fit: a folder is none of the experiment's classes; its log says more",
            )
        if not folders:  # of which torchvision would complain in its own words
            return []
        numbers = {name: self.classes.index(name) for name in folders}
        module = torchvision.datasets.folder
        found: list[tuple[str, int]] = module.make_dataset(
            str(path), numbers, extensions=module.IMG_EXTENSIONS, allow_empty=True
        )
        return found


class ImageFolderProblem(OwnNetworkProblem):
    """Clients with images of their own."""

    data_name = "images of the clients' own"


def _images_in(folder: Path) -> list[str]:
    """Return the images that are directly in a folder."""
    kinds = torchvision.datasets.folder.IMG_EXTENSIONS
    return sorted(str(file) for file in folder.iterdir() if file.suffix.lower() in kinds)


def _square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Scale an image so that its shorter side fits, and take its middle."""
    scale = side / min(image.size)
    size = (max(side, round(image.width * scale)), max(side, round(image.height * scale)))
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    scaled = image if image.size == size else image.resize(size, Image.Resampling.BILINEAR)
    cropped = scaled.crop((left, top, left + side, top + side))
    return np.asarray(cropped, dtype=np.uint8).transpose(2, 0, 1)
