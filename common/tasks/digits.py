"""Handwritten digits (scikit-learn's, 1,797 real images of 8 x 8 pixels), softmax regression; needs no download."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from common.errors import PublicError
from common.learning.blueprint import Blueprint
from common.learning.data import DataFolder
from common.learning.objectives.softmax import Samples, SoftmaxProblem, pixel_blueprint
from common.learning.partition import Concentration, SizeVariance, dirichlet_split
from common.learning.task import Task
from common.randomness import stream
from common.ranges import Range

_CLASSES = 10
_PIXELS = 8 * 8
_BRIGHTEST = 16.0


@dataclass(frozen=True, kw_only=True)
class Digits(Task):
    """Softmax regression on small images, dealt out with a Dirichlet mix of labels."""

    concentration: Concentration = 0.3
    size_variance: SizeVariance = 0.0
    test_fraction: Annotated[float, Range(above=0, below=1)] = 0.2
    validation_fraction: Annotated[float, Range(at_least=0, below=1)] = 0.0  # of the other images, to tune with
    ridge: Annotated[float, Range(at_least=0)] = 1e-3

    def load(self, data: DataFolder, *, clients: int, seed: int, device: torch.device) -> SoftmaxProblem:
        """Read the images out of scikit-learn and split them."""
        images = read_images()
        generator = stream(seed, "digits")
        order = generator.permutation(len(images))
        tested = max(1, round(self.test_fraction * len(images)))
        validated = round(self.validation_fraction * (len(images) - tested))
        test, validation, train = (images.take(part) for part in np.split(order, [tested, tested + validated]))
        parts = dirichlet_split(
            train.labels,
            clients,
            concentration=self.concentration,
            size_variance=self.size_variance,
            generator=generator,
        )
        return SoftmaxProblem(
            data_name="scikit-learn digits",
            train=[train.take(part) for part in parts],
            held_out={"test": test} | ({"validation": validation} if validated else {}),
            classes=_CLASSES,
            ridge=self.ridge,
            seed=seed,
            device=device,
        )

    def blueprint(self) -> Blueprint:
        """Return what the model is."""
        return pixel_blueprint(_PIXELS, tuple(map(str, range(_CLASSES))))


def read_images() -> Samples:
    """Read the file that `sklearn.datasets.load_digits` reads, without importing all of it: that takes a second."""
    found = importlib.util.find_spec("sklearn")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz" if found and found.origin else None
    if file is None or not file.is_file():
        raise PublicError("task digits needs scikit-learn: pip install 'sparse-proxskip[data]'")
    rows = np.loadtxt(file, delimiter=",")
    return Samples((rows[:, :-1] / _BRIGHTEST).astype(np.float32), rows[:, -1].astype(np.int64))
