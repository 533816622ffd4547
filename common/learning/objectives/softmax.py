"""Softmax regression, with the objective of the paper's Appendix C (that of scikit-learn).

    f_i(w) = N/n sum_{j in client i} -log p(y_j | x_j; w) + ridge/2 |w|^2

N is the number of clients and n that of all samples, so that the mean of the f_i is the loss over all data. The model
is the flattened (classes, features + 1) matrix; the last feature is a constant 1, whose weights are the bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.learning.blueprint import Blueprint, Input
from common.learning.examples import Examples
from common.learning.linear import linear_tensors
from common.learning.task import Problem
from common.randomness import torch_stream
from common.rounds.objective import FullGradient, Gradient, Objective
from common.rounds.state import ServerState


@dataclass(frozen=True)
class Samples:
    """Labelled samples: features (n, f), labels (n,)."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> Samples:
        """Return some of the samples, by their places or by a mask."""
        return Samples(self.features[chosen], self.labels[chosen])


class SoftmaxRegression(Objective):
    """The cross-entropy of one client, or of many as one batch padded to the largest."""

    def __init__(
        self,
        clients: Sequence[Samples],
        *,
        classes: int,
        sample_weights: Sequence[float],  # what one sample of each client counts
        ridge: float,
        device: torch.device,
    ) -> None:
        self._ridge = ridge
        pad = torch.nn.utils.rnn.pad_sequence
        features = pad([_with_bias(client.features) for client in clients], batch_first=True)
        labels = pad([torch.from_numpy(client.labels) for client in clients], batch_first=True)
        pairs = zip(clients, sample_weights, strict=True)
        weights = pad([torch.full((len(client),), weight) for client, weight in pairs], batch_first=True)
        self._features = features.to(device)  # (N, n, f + 1)
        self._weights = weights.to(device)[:, None, None]  # (N, 1, 1, n); zero for padding
        one_hot = torch.nn.functional.one_hot(labels, classes).transpose(1, 2)
        self._targets = one_hot.to(device, torch.float32).unsqueeze(1)  # (N, 1, classes, n)

    def round(self, number: int, buffers: Tensor | None) -> AbstractContextManager[Gradient]:
        """Begin a round like any other."""
        return nullcontext(FullGradient(self.gradient))

    def gradient(self, weights: Tensor) -> Tensor:
        """Return (weight (p - y)) X + ridge w for every client."""
        matrices = self._as_matrices(weights)
        scores = self._scores(matrices)
        error = torch.softmax(scores, dim=2).sub_(self._targets).mul_(self._weights).flatten(1, 2)
        return torch.baddbmm(matrices, error, self._features, beta=self._ridge).reshape(weights.shape)

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        """Return f_i(w_i) for every client."""
        matrices = self._as_matrices(weights)
        log_likelihood = torch.log_softmax(self._scores(matrices), dim=2) * self._targets
        fit = -(self._weights * log_likelihood).sum((2, 3)).reshape(weights.shape[:-1])
        return fit + self._ridge / 2 * weights.square().sum(-1)

    def _as_matrices(self, weights: Tensor) -> Tensor:
        """Return (N, points * classes, f + 1): each client has one point, or several in a sweep."""
        count, _, features = self._features.shape
        return weights.reshape(count, -1, features)

    def _scores(self, matrices: Tensor) -> Tensor:
        """Return (N, points, classes, n): with the few classes as rows, three times as fast as the other way."""
        _, _, classes, samples = self._targets.shape
        scores = torch.bmm(matrices, self._features.transpose(1, 2))
        return scores.reshape(len(scores), -1, classes, samples)


class SoftmaxProblem(Problem):
    """Clients with labelled samples, a shared linear classifier, accuracy on held-out sets: `test` and maybe others."""

    metric: str = "test_accuracy"
    batched: ClassVar[bool] = True

    def __init__(
        self,
        *,
        data_name: str,
        train: Sequence[Samples],
        held_out: Mapping[str, Samples],
        classes: int,
        ridge: float,
        seed: int,
        device: torch.device,
    ) -> None:
        self.data_name = data_name
        self.clients = len(train)
        self._train = train
        self._classes = classes
        self._ridge = ridge
        self._seed = seed
        self._device = device
        self._sample_weight = self.clients / sum(map(len, train))  # N / n
        self._held_out = {
            part: (_with_bias(samples.features).to(device), torch.from_numpy(samples.labels).to(device))
            for part, samples in held_out.items()
        }

    def initial_state(self) -> ServerState:
        """Start where PyTorch starts a linear layer, as the paper does."""
        inputs = self._train[0].features.shape[1]
        bound = inputs**-0.5
        uniform = torch.rand((inputs + 1) * self._classes, generator=torch_stream(self._seed, "initial model"))
        return ServerState(model=(2 * uniform - 1) * bound)

    def objective(self, clients: Sequence[int]) -> Objective:
        """Return the cross-entropy of these clients."""
        return SoftmaxRegression(
            [self._train[client] for client in clients],
            classes=self._classes,
            sample_weights=[self._sample_weight] * len(clients),
            ridge=self._ridge,
            device=self._device,
        )

    def evaluate(self, state: ServerState) -> dict[str, float]:
        """Return the accuracy on the test set, and on the validation set where there is one."""
        weights = state.model.to(self._device).reshape(self._classes, -1)
        right = {part: (inputs @ weights.T).argmax(-1) == labels for part, (inputs, labels) in self._held_out.items()}
        return {f"{part}_accuracy": int(hits.sum()) / len(hits) for part, hits in right.items()}

    def tensors(self, state: ServerState) -> dict[str, Tensor]:
        """Return a model as weight and bias."""
        return linear_tensors(state.model, self._classes)

    def examples(self) -> Examples:
        """Return the test set."""
        features, labels = (part.cpu() for part in self._held_out["test"])
        names = [str(number + 1) for number in range(len(labels))]
        return Examples(names=names, inputs=(features[:, :-1],), targets=labels.double().numpy())


def pixel_blueprint(pixels: int, classes: tuple[str, ...]) -> Blueprint:
    """Return what a linear classifier of pictures is whose pixels are between 0 and 1."""
    return Blueprint(
        module=torch.nn.Linear(pixels, len(classes)),
        inputs=(Input(name="pixels", example=torch.zeros(2, pixels)),),
        scaling="none: pixels are numbers from 0 to 1",
        classes=classes,
    )


def _with_bias(features: NDArray[np.float32]) -> Tensor:
    return torch.nn.functional.pad(torch.from_numpy(features), (0, 1), value=1.0)
