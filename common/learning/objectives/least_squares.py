"""Ridge regression: f_i(w) = 1/2 |A_i w - b_i|^2 + ridge/2 |w|^2.

Only A_i'A_i, A_i'b_i and |b_i|^2 enter, so a client keeps the thin factor S V' of A_i = U S V', whose rank is far below
the number of its rows, instead of the rows. Clients of similar rank are padded to one size and run as one batch. At
sparse points of many clients, A_i'A_i w needs only the rows of the Gram matrix A_i'A_i at the support of w: a quarter
of the time. A client alone keeps to its factor: its Gram matrix would be large, and save nothing that one notices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.learning.objectives.buckets import buckets_of_similar_size
from common.learning.objectives.support_rows import SupportRows
from common.rounds.objective import Gradient, Objective

# Directions whose singular value is below this fraction of the largest carry no float32 information.
NEGLIGIBLE = 1e-7
# Factors are used twice in a gradient: a batch of this size (times d) is still in the cache the second time.
MOST_ROWS_AT_ONCE = 450
SPARSE = 0.25  # the largest share of entries that are not zero for which rows of Gram matrices are sooner
MOST_GRAM_BYTES = 1 << 28


@dataclass(frozen=True)
class ThinClient:
    """All that the loss of one client depends on."""

    factor: Tensor  # (rank, d)
    moment: Tensor  # A' b, (d,)
    target_square: float  # |b|^2

    @classmethod
    def of(cls, features: NDArray[np.float64], targets: NDArray[np.float64]) -> ThinClient:
        """Reduce a client's rows; a client without rows has rank 0."""
        _, singular, directions = np.linalg.svd(features, full_matrices=False)
        kept = singular > NEGLIGIBLE * (singular[0] if singular.size else 0)
        return cls(
            factor=torch.from_numpy(singular[kept, None] * directions[kept]).float(),
            moment=torch.from_numpy(features.T @ targets).float(),
            target_square=float(targets @ targets),
        )


class LeastSquares(Objective):
    """The ridge loss of one client, or of many as one batch."""

    def __init__(self, clients: Sequence[ThinClient], ridge: float, device: torch.device) -> None:
        self._ridge = ridge
        self._moment = torch.stack([client.moment for client in clients]).to(device)
        self._target_square = torch.tensor([client.target_square for client in clients]).to(device)
        buckets = buckets_of_similar_size([len(client.factor) for client in clients], most_in_all=MOST_ROWS_AT_ONCE)
        self._members = torch.tensor([index for bucket in buckets for index in bucket], dtype=torch.int64).to(device)
        self._factors = [_padded([clients[index].factor for index in bucket]).to(device) for bucket in buckets]

    def round(self, number: int, buffers: Tensor | None) -> AbstractContextManager[Gradient]:
        """Begin a round like any other."""
        return nullcontext(RidgeGradient(self))

    def gradient(self, weights: Tensor, support_rows: SupportRows | None = None) -> Tensor:
        """Return A_i'(A_i w_i - b_i) + ridge w_i for every client."""
        rows = self._by_client(weights)
        result = torch.add(-self._moment.unsqueeze(1), rows, alpha=self._ridge)
        if support_rows is not None:
            result += torch.from_numpy(support_rows.products(rows[:, 0].numpy())).unsqueeze(1)
        elif self._factors:
            products = [_product(_product(part, factor.mT), factor) for part, factor in self._with_factors(rows)]
            result[self._members] += torch.cat(products)
        return result.reshape(weights.shape)

    def is_sparse(self, weights: Tensor) -> bool:
        """Say whether each of many clients has one point, most of it zero, and Gram matrices take little memory."""
        clients, size = self._moment.shape
        if clients == 1 or weights.numel() > clients * size or weights.device.type != "cpu":
            return False
        most = np.count_nonzero(weights.reshape(clients, size).numpy(), axis=1).max()
        return bool(most <= SPARSE * size) and 4 * clients * size**2 <= MOST_GRAM_BYTES

    @cached_property
    def gram(self) -> NDArray[np.float32]:
        """Return A_i'A_i of all clients."""
        clients, size = self._moment.shape
        gram = torch.zeros(clients, size, size)
        if self._factors:
            gram[self._members] = torch.cat(
                [(factor.double().mT @ factor.double()).float() for factor in self._factors]
            )
        return gram.numpy()

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        """Return f_i(w_i) for every client."""
        rows = self._by_client(weights)
        fit = self._target_square.unsqueeze(1) - 2 * (self._moment.unsqueeze(1) * rows).sum(-1)
        twice = fit + self._ridge * rows.square().sum(-1)
        squares = [torch.bmm(part, factor.mT).square().sum(-1) for part, factor in self._with_factors(rows)]
        if squares:
            twice[self._members] += torch.cat(squares)
        return (twice / 2).reshape(weights.shape[:-1])

    def _by_client(self, weights: Tensor) -> Tensor:
        """Return (N, points, d): each client has one point, or several in a sweep."""
        clients, size = self._moment.shape
        return weights.reshape(clients, -1, size)

    def _with_factors(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Give the rows of each batch of clients with their factors."""
        parts = torch.split(rows[self._members], [len(factor) for factor in self._factors])
        return zip(parts, self._factors, strict=True)


class RidgeGradient(Gradient):
    """The full gradient, at points that follow one another."""

    def __init__(self, objective: LeastSquares) -> None:
        self._objective = objective
        self._support_rows: SupportRows | None = None

    def __call__(self, weights: Tensor) -> Tensor:
        """Return the gradient at w."""
        if not self._objective.is_sparse(weights):
            return self._objective.gradient(weights)
        self._support_rows = self._support_rows or SupportRows(self._objective.gram)
        return self._objective.gradient(weights, self._support_rows)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of two batches; on a CPU by numpy, whose loop of BLAS calls takes half of the time of bmm."""
    if left.device.type == "cpu":
        return torch.from_numpy(np.matmul(left.numpy(), right.numpy()))
    return torch.bmm(left, right)


def _padded(factors: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(factors), batch_first=True)
