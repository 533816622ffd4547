"""Ridge regression: f_i(w) = 1/2 |A_i w - b_i|^2 + ridge/2 |w|^2.

Only A_i'A_i, A_i'b_i and |b_i|^2 enter, so a client keeps the thin factor S V' of A_i = U S V', whose rank is far below
the number of its rows, instead of the rows. Clients of similar rank are padded to one size and run as one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.objectives.buckets import buckets_of_similar_size
from common.task import Objective

# Directions whose singular value is below this fraction of the largest carry no float32 information.
NEGLIGIBLE = 1e-7


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
        self._buckets = [
            (torch.tensor(members, device=device), _padded([clients[i].factor for i in members]).to(device))
            for members in buckets_of_similar_size([len(client.factor) for client in clients])
        ]

    def start_round(self, round_number: int, buffers: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return the full gradient, the same in every round."""
        return self.gradient

    def gradient(self, weights: Tensor) -> Tensor:
        """Return A_i'(A_i w_i - b_i) + ridge w_i for every client."""
        rows = weights.reshape(self._moment.shape)
        result = torch.add(-self._moment, rows, alpha=self._ridge)
        for members, factor in self._buckets:
            # Row vectors from the left: four times as fast on a CPU as column vectors from the right.
            image = torch.bmm(rows[members].unsqueeze(1), factor.transpose(1, 2))
            result[members] += torch.bmm(image, factor).squeeze(1)
        return result.reshape(weights.shape)

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        """Return f_i(w_i) for every client."""
        rows = weights.reshape(self._moment.shape)
        twice = self._target_square - 2 * (self._moment * rows).sum(-1) + self._ridge * rows.square().sum(-1)
        for members, factor in self._buckets:
            twice[members] += torch.bmm(factor, rows[members].unsqueeze(-1)).square().sum((1, 2))
        return (twice / 2).reshape(weights.shape[:-1])


def _padded(factors: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(factors), batch_first=True)
