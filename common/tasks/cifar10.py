"""CIFAR-10: a ResNet18 on images dealt out with a Dirichlet mix. The set-up of the paper's Section 4.3 and Appendix E.

Two sources, each named for what it is: "CIFAR-10", torchvision's folder `cifar-10-batches-py`, which torchvision
downloads; and "CIFAR-10 (JPEG)", the archive `cifar10-jpeg.tar.xz` of lossy train|test/CLASS/NUMBER.jpg.
"""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from common.errors import UserError
from common.learning.batches import Batch, Batches, moved
from common.learning.blueprint import Blueprint
from common.learning.data import DataFolder
from common.learning.examples import Examples
from common.learning.images import Images, ImageTask, image_blueprint
from common.learning.loader import batches_of
from common.learning.network_problem import NetworkProblem
from common.learning.networks import ResNet18
from common.learning.objectives.network import NetworkObjective
from common.learning.partition import Concentration, SizeVariance, dirichlet_split
from common.learning.task import Problem
from common.randomness import stream
from common.ranges import Range
from common.rounds.state import ServerState

_CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CLASSES = len(_CLASS_NAMES)
SIDE_PIXELS = 32
BATCHES_FOLDER = "cifar-10-batches-py"
JPEG_ARCHIVE = "cifar10-jpeg.tar.xz"


@dataclass(frozen=True, kw_only=True)
class Cifar10(ImageTask):
    """Image classification with a residual network."""

    width: Annotated[int, Range(at_least=1, at_most=256)] = 64  # channels of the first stage: 64 is ResNet18
    concentration: Concentration = 0.3
    size_variance: SizeVariance = 0.3
    train_samples: Annotated[int, Range(at_least=10, at_most=50_000)] = 50_000
    validation_samples: Annotated[int, Range(at_least=0, at_most=10_000)] = 0  # of the training images, to tune with
    test_samples: Annotated[int, Range(at_least=1, at_most=10_000)] = 10_000
    statistics_samples: Annotated[int, Range(at_least=0, at_most=10_000)] = 0  # to estimate BatchNorm's by: a 2nd score

    def load(self, data: DataFolder, *, clients: int, seed: int, device: torch.device) -> Problem:
        """Read the images and deal them out."""
        name, train, test = _read(data)
        generator = stream(seed, "cifar10")
        train = _sample(train, self.train_samples, generator)
        held_out = {"test": _sample(test, self.test_samples, generator)}
        if self.validation_samples:
            held_out["validation"], train = _part_and_rest(train, self.validation_samples, generator)
        parts = dirichlet_split(
            train.labels,
            clients,
            concentration=self.concentration,
            size_variance=self.size_variance,
            generator=generator,
        )
        return Cifar10Problem(self, name, train, held_out, parts, seed, device)

    def module(self) -> ResNet18:
        """Return the network."""
        return ResNet18(self.width, _CLASSES)

    def blueprint(self) -> Blueprint:
        """Return what the model is."""
        return image_blueprint(self.module(), SIDE_PIXELS, _CLASS_NAMES)


class Cifar10Problem(NetworkProblem):
    """Clients with parts of CIFAR-10, and a test set that everybody has."""

    def __init__(
        self,
        task: Cifar10,
        data_name: str,
        train: Images,
        held_out: Mapping[str, Images],
        parts: Sequence[NDArray[np.int64]],
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(task, seed=seed, device=device)
        self.data_name = data_name
        self.clients = len(parts)
        self._train = train
        self._parts = parts
        self._test = held_out["test"]
        self._held_out = {part: self._batches(images, part) for part, images in held_out.items()}
        self._statistics: Batch | None = None
        if task.statistics_samples:
            sample = _sample(train, task.statistics_samples, stream(seed, "cifar10 statistics"))
            self._statistics = moved(sample.dataset().tensors, device)

    def objective(self, clients: Sequence[int]) -> NetworkObjective:
        """Return the loss of one client."""
        (client,) = clients
        batches = self._batches(self._train.take(self._parts[client]), "train")
        return NetworkObjective(self._task, self._network, batches, seed=self._seed, client=client)

    def evaluate(self, state: ServerState) -> dict[str, float]:
        """Return the accuracy on the test images, and on those for validation where there are any.

        With `statistics_samples` also what it were if BatchNorm's statistics were not the mean of the clients' own, but
        those of this very model, which is sparser than what the clients have them from.
        """
        scores = {f"{part}_accuracy": self._accuracy(state, batches) for part, batches in self._held_out.items()}
        if self._statistics is None:
            return scores
        anew = self.with_statistics_of(state, self._statistics)
        return scores | {
            f"{part}_accuracy_anew": self._accuracy(anew, batches) for part, batches in self._held_out.items()
        }

    def examples(self) -> Examples:
        """Return the test images."""
        pixels, labels = self._test.dataset().tensors
        names = [str(number + 1) for number in range(len(labels))]
        return Examples(names=names, inputs=(pixels,), targets=labels.double().numpy())

    def _accuracy(self, state: ServerState, batches: Batches) -> float:
        return self.means(state, batches).means[self.metric]

    def _batches(self, images: Images, part: str) -> Batches:
        return batches_of(self._task, images.dataset(), self._device, part)


def _read(data: DataFolder) -> tuple[str, Images, Images]:
    if (data.path / JPEG_ARCHIVE).is_file() and not (data.path / BATCHES_FOLDER).is_dir():
        return "CIFAR-10 (JPEG)", *read_jpeg_archive(data.path / JPEG_ARCHIVE)
    if not data.may_download and not (data.path / BATCHES_FOLDER).is_dir():
        raise data.missing(
            f"{BATCHES_FOLDER}/ (torchvision's CIFAR10), or else {JPEG_ARCHIVE},",
            "leave out --data to download CIFAR-10",
        )
    return "CIFAR-10", *read_torchvision_folder(data)


def read_torchvision_folder(data: DataFolder) -> tuple[Images, Images]:
    """Read, and download where needed, CIFAR-10 as torchvision has it."""
    from common.learning.vision import torchvision

    try:
        train, test = (
            torchvision.datasets.CIFAR10(data.path, train=part, download=data.may_download) for part in (True, False)
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{BATCHES_FOLDER} is not (whole) in {data.path} and cannot be downloaded ({error}); "
            "say where it is with --data DIR"
        ) from None
    return _channels_first(train.data, train.targets), _channels_first(test.data, test.targets)


def read_jpeg_archive(path: Path) -> tuple[Images, Images]:
    """Decode an archive of train|test/CLASS/NUMBER.jpg; classes are numbered by the alphabet."""
    from PIL import Image, UnidentifiedImageError

    found: dict[tuple[str, str, str], NDArray[np.uint8]] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".jpg") else None
                if file is not None:
                    part, label, number = Path(member.name).parts[-3:]
                    pixels = np.asarray(Image.open(file).convert("RGB"))
                    if pixels.shape != (SIDE_PIXELS, SIDE_PIXELS, 3):
                        raise ValueError(f"{member.name} is not {SIDE_PIXELS} pixels wide and high")
                    found[part, label, number] = pixels
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, ValueError, UnidentifiedImageError) as error:
        raise UserError(f"{path} is damaged or is not an archive of train|test/CLASS/NUMBER.jpg: {error}") from None
    classes = sorted({label for _, label, _ in found})
    return _collect(found, "train", classes, path), _collect(found, "test", classes, path)


def _collect(found: dict[tuple[str, str, str], NDArray[np.uint8]], part: str, classes: list[str], path: Path) -> Images:
    keys = sorted(key for key in found if key[0] == part)
    if not keys or len(classes) != _CLASSES:
        raise UserError(f"{path}: expected images of {_CLASSES} classes in {part}/, found {len(classes)} classes")
    return _channels_first(np.stack([found[key] for key in keys]), [classes.index(label) for _, label, _ in keys])


def _channels_first(pixels: NDArray[np.uint8], labels: Any) -> Images:  # noqa: ANN401
    return Images(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), np.array(labels, dtype=np.int64))


def _sample(images: Images, count: int, generator: np.random.Generator) -> Images:
    """Take a random part of the images; all of them in their order if it is to be all."""
    if count >= len(images.labels):
        return images
    chosen = np.sort(generator.choice(len(images.labels), count, replace=False))
    return images.take(chosen)


def _part_and_rest(images: Images, count: int, generator: np.random.Generator) -> tuple[Images, Images]:
    """Return a random part of so many images, and the others."""
    if count >= len(images.labels):
        raise UserError(f"task.validation_samples = {count}: there are {len(images.labels)} training images")
    chosen = np.zeros(len(images.labels), dtype=bool)
    chosen[generator.choice(len(images.labels), count, replace=False)] = True
    return images.take(chosen), images.take(~chosen)
