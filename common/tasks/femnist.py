"""Handwriting by writer, softmax regression: the set-up of the paper's Section 4.2 and Appendix C.

Two sources, each named for what it is:
- "FEMNIST", in the json layout of LEAF (Caldas et al., 2018): `femnist/train/*.json` and `femnist/test/*.json`;
- "MNIST by writer", the digits of MNIST with the NIST writer of every image: `mnist_writers.npz` with X_train, y_train,
  writer_train, X_test, y_test; or QMNIST (Yadav and Bottou, 2019), which torchvision downloads.
"""

from __future__ import annotations

import json
import string
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from common.errors import UserError
from common.learning.blueprint import Blueprint
from common.learning.data import DataFolder
from common.learning.objectives.softmax import Samples, SoftmaxProblem, pixel_blueprint
from common.learning.task import Task
from common.randomness import stream
from common.ranges import Range

LEAF_FOLDER = "femnist"
WRITERS_FILE = "mnist_writers.npz"
_BRIGHTEST = 255.0
PIXELS = 28 * 28
_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase  # in the order of FEMNIST's labels


@dataclass(frozen=True)
class Handwriting:
    """Images with their writers, and a test set by other hands or other samples."""

    name: str
    train: Samples
    writers: NDArray[Any]
    test: Samples


@dataclass(frozen=True, kw_only=True)
class Femnist(Task):
    """Softmax regression over the writers' own images."""

    source: Literal["auto", "femnist", "mnist_by_writer"] = "auto"  # auto: FEMNIST if it is there
    classes: Annotated[int, Range(at_least=2, at_most=62)] = 10  # 10: digits only; 62: letters too (FEMNIST)
    ridge: Annotated[float, Range(at_least=0)] = 1e-4  # alpha
    validation_writers: Annotated[int, Range(at_least=0, at_most=10_000)] = (
        50  # at most: other writers than the clients, to tune with
    )

    def load(self, data: DataFolder, *, clients: int, seed: int, device: torch.device) -> SoftmaxProblem:
        """Read the images and take `clients` writers at random."""
        images = self._read(data)
        present = np.unique(images.writers)
        if clients > len(present):
            raise UserError(f"clients = {clients}: {images.name} has {len(present)} writers")
        chosen = np.sort(stream(seed, "writers").choice(present, clients, replace=False))
        others = np.setdiff1d(present, chosen)
        validating = stream(seed, "validation").permutation(others)[: self.validation_writers]
        held_out = {"test": images.test}
        if len(validating):
            held_out["validation"] = images.train.take(np.isin(images.writers, validating))
        return SoftmaxProblem(
            data_name=images.name,
            train=[images.train.take(images.writers == writer) for writer in chosen],
            held_out=held_out,
            classes=self.classes,
            ridge=self.ridge,
            seed=seed,
            device=device,
        )

    def blueprint(self) -> Blueprint:
        """Return what the model is."""
        return pixel_blueprint(PIXELS, tuple(_CHARACTERS[: self.classes]))

    def _read(self, data: DataFolder) -> Handwriting:
        leaf = data.path / LEAF_FOLDER
        if self.source == "femnist" or (self.source == "auto" and leaf.is_dir()):
            return read_leaf(data, leaf, self.classes)
        if (data.path / WRITERS_FILE).is_file():
            return read_writers_file(data.path / WRITERS_FILE, self.classes)
        if data.may_download:
            return read_qmnist(data.path, self.classes)
        raise data.missing(
            f"{LEAF_FOLDER}/train/*.json (FEMNIST), or else {WRITERS_FILE} (MNIST by writer),",
            "make the first with LEAF's preprocess.sh, or leave out --data to download QMNIST",
        )


def read_leaf(data: DataFolder, folder: Path, classes: int) -> Handwriting:
    """Read FEMNIST as LEAF's preprocessing writes it."""
    for part in ("train", "test"):
        if not list((folder / part).glob("*.json")):
            raise data.missing(f"{LEAF_FOLDER}/{part}/*.json", "make it with LEAF's preprocess.sh for femnist")
    try:
        train, writers = _join(_leaf_users(folder / "train"), classes)
        test, _ = _join(_leaf_users(folder / "test"), classes)
        return _checked(Handwriting("FEMNIST", train, writers, test), classes)
    except ValueError as error:
        raise UserError(f"{folder} is not FEMNIST in LEAF's json layout: {error}") from None


def read_writers_file(path: Path, classes: int) -> Handwriting:
    """Read MNIST with its writers from one .npz file."""
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            train = _scaled(file["X_train"], file["y_train"])
            test = _scaled(file["X_test"], file["y_test"])
            return _mnist_by_writer(train, file["writer_train"], test, classes)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged or is not MNIST by writer: {error}") from None


def read_qmnist(folder: Path, classes: int) -> Handwriting:
    """Read, and download where needed, MNIST with its writers as torchvision has it."""
    from common.learning.vision import torchvision

    try:
        parts = [
            torchvision.datasets.QMNIST(folder, what=part, compat=False, download=True) for part in ("train", "test10k")
        ]
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"QMNIST is not in {folder} and cannot be downloaded ({error}); say with --data DIR where {WRITERS_FILE} is"
        ) from None
    train, test = (_scaled(part.data.numpy(), part.targets[:, 0].numpy()) for part in parts)
    writers = parts[0].targets[:, 2].numpy()  # the columns of QMNIST's labels: digit, series, writer, ...
    try:
        return _mnist_by_writer(train, writers, test, classes)
    except ValueError as error:
        raise UserError(f"QMNIST in {folder} is damaged ({error}); remove it to download it again") from None


def _mnist_by_writer(train: Samples, writers: NDArray[Any], test: Samples, classes: int) -> Handwriting:
    if classes != 10:
        raise UserError(f"task.classes = {classes}: MNIST by writer has the 10 digits only; FEMNIST has 62 classes")
    return _checked(Handwriting("MNIST by writer", train, writers, test), classes)


def _checked(images: Handwriting, classes: int) -> Handwriting:
    """Return images that fit together; ValueError else."""
    if len(images.writers) != len(images.train):
        raise ValueError(f"{len(images.train)} training images have {len(images.writers)} writers")
    for name, samples in (("training", images.train), ("test", images.test)):
        if len(samples) == 0 or samples.features.shape != (len(samples), PIXELS):
            raise ValueError(f"the {name} images are not {len(samples)} pictures of {PIXELS} pixels")
        if samples.labels.min() < 0 or samples.labels.max() >= classes:
            raise ValueError(f"the {name} labels are not between 0 and {classes - 1}")
        if not np.isfinite(samples.features).all():
            raise ValueError(f"the {name} images have pixels that are no finite numbers")
    return images


def _leaf_users(folder: Path) -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.int64]]]:
    for path in sorted(folder.glob("*.json")):
        try:
            users = json.loads(path.read_text(encoding="utf-8"))["user_data"]
            for user, samples in users.items():
                features = np.array(samples["x"], dtype=np.float32).reshape(len(samples["y"]), -1)
                yield user, features, np.array(samples["y"], dtype=np.int64)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not in LEAF's json layout: {error!r}") from None


def _join(
    users: Iterator[tuple[str, NDArray[np.float32], NDArray[np.int64]]], classes: int
) -> tuple[Samples, NDArray[Any]]:
    """Join the users' samples of the wanted classes, with the user of each."""
    features, labels, writers = [], [], []
    for user, images, digits in users:
        wanted = digits < classes
        features.append(images[wanted])
        labels.append(digits[wanted])
        writers.append(np.full(int(wanted.sum()), user))
    return Samples(np.concatenate(features), np.concatenate(labels)), np.concatenate(writers)


def _scaled(images: NDArray[np.uint8], labels: NDArray[Any]) -> Samples:
    return Samples((images.reshape(len(images), -1) / _BRIGHTEST).astype(np.float32), labels.astype(np.int64))
