"""The vectors that TopK and codec are measured on, and the unit that they are measured in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from server.simulation.simulation import Simulation

SIZE = 11_173_962  # parameters of ResNet18 with 10 classes
SPARSITIES = (0.80, 0.90, 0.95, 0.99)
TRAINED_WIDTH = 16
TRAINING = ("clients=2", "rounds=4", "evaluate_every_rounds=4", "algorithm.name=proxskip", "schedule.period=20")


def normal_vector() -> Tensor:
    """Return a vector whose largest entries are anywhere with the same probability."""
    return torch.from_numpy(np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32))


def trained_vector(data: DataFolder) -> Tensor:
    """Return the weights of a small ResNet that was trained on real images for some steps."""
    settings = [*TRAINING, f"task.width={TRAINED_WIDTH}", "task.train_samples=2000", "task.test_samples=500"]
    experiment = load_experiment("cifar10", settings)
    simulation = Simulation(experiment, experiment.load(data, torch.device("cpu")), torch.device("cpu"))
    *_, _last = simulation.rounds()
    return simulation.state.model


def one_pass(vector: Tensor) -> Callable[[], None]:
    """Return the unit: a copy of the vector by one thread."""
    source, target = vector.numpy(), np.empty_like(vector.numpy())
    return lambda: np.copyto(target, source)
