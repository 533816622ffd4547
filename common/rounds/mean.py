"""The uniform mean of uploads, summed on the CPU as they arrive and forgotten at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import DecodeError
from common.rounds.outliers import Change
from common.rounds.state import ReceivedUpload, Upload
from common.vectors.entries import Places
from common.vectors.exact_sum import ExactSum
from common.vectors.remainder import Remainder

AVERAGED = ("model", "control_change", "buffers")


class ControlSum:
    """How far control variates are from summing to zero; each of its answers uses it up."""

    def __init__(self) -> None:
        self.clients = 0
        self._sum: ExactSum | None = None
        self._norms = 0.0

    def add(self, controls: Tensor) -> None:
        """Add the control of one client, or of a batch of clients (rows)."""
        rows = controls.numpy(force=True).reshape(-1, controls.shape[-1])
        self._sum = self._sum or ExactSum(controls.shape[-1])
        self._sum.add_rows(rows)
        self.clients += len(rows)
        self._norms += float(np.linalg.norm(rows.astype(np.float64), axis=-1).sum())

    def relative_norm(self) -> float:
        """Return |mean of h_i| / mean of |h_i|, which is zero up to rounding while the sum of the h_i is."""
        return self.sum_norm() / self._norms if self._norms else 0.0

    def sum_norm(self) -> float:
        """Return |sum of h_i|."""
        return float(np.linalg.norm(self._sum.total())) if self._sum else 0.0

    def mean_norm(self) -> float:
        """Return the mean of |h_i|."""
        return self._norms / self.clients if self.clients else 0.0

    def mean(self, holders: Tensor | None = None) -> Tensor:
        """Return the mean of the controls in float32. `holders` says of how many, by place."""
        assert self._sum is not None
        return torch.from_numpy(self._sum.mean(self.clients if holders is None else holders.numpy(), np.float32))


class RunningMean:
    """An exact sum of uploads; every client counts the same, whatever its number of examples.

    Weights by examples would break the zero sum of the control variates; they belong into a client's loss.
    """

    def __init__(self, largest_norm: float = math.inf) -> None:
        self._largest_norm = largest_norm
        self.clients = 0
        self.model_values = 0  # nonzero values that were uploaded, of models
        self._dtype: type[np.floating[Any]] = np.float32
        self._sums: dict[str, ExactSum] = {}

    def add(self, upload: Upload | ReceivedUpload, change: Change | None = None) -> int:
        """Count the upload of one client, or of a batch of clients (rows); return its values as the paper counts.

        What cannot be read to its end, or is larger than it may be (DecodeError), leaves the sum as it was. `change`
        sees all of a received one, which may be read only once.
        """
        if isinstance(upload, Upload):
            values = {name: self._add_rows(name, vector) for name, vector in _vectors(upload).items()}
            self.clients += upload.model.shape[0] if upload.model.dim() > 1 else 1
        else:
            values = self._add_blocks(upload, change)
            self.clients += 1
        self.model_values += values["model"]
        return values["model"] + values.get("control_change", 0)

    def mean(
        self, carried: Remainder | None = None, rest: Remainder | None = None, senders: Tensor | None = None
    ) -> Upload:
        """Return the mean of what was added; the sums are used up by it. `senders` says of how many models, by place.

        What rounding takes from the models' mean goes into `rest`, and what it took before, `carried`, is added first.
        Without that the control variates, which are closed with the rounded mean, would add up all roundings.
        """
        sums, self._sums = self._sums, {}  # they are large: not to be kept until somebody forgets this object
        count = self.clients if senders is None else senders.numpy()
        model = sums.pop("model").mean(count, self._dtype, carried, rest)
        others = {name: torch.from_numpy(sums.pop(name).mean(self.clients, self._dtype)) for name in list(sums)}
        return Upload(model=torch.from_numpy(model), **others)

    def _add_rows(self, name: str, vector: Tensor) -> int:
        """Add to one sum, and return how many values were not zero."""
        rows = vector.numpy(force=True)
        self._dtype = rows.dtype.type
        total = self._sum(name, rows.shape[-1])
        total.add(rows) if rows.ndim == 1 else total.add_rows(rows)
        return int(np.count_nonzero(rows))

    def _add_blocks(self, upload: ReceivedUpload, change: Change | None) -> Counter[str]:
        """Add to all sums, or to none, and return how many values of each vector were not zero."""
        for name, vector in _vectors(upload).items():
            self._sum(name, vector.size).begin()
        values: Counter[str] = Counter()
        squares, done = 0.0, 0
        try:
            for name, where, block in _blocks(upload):
                if name == "model" and self._largest_norm < math.inf:
                    squares += float(np.square(block, dtype=np.float64).sum())
                    if squares > self._largest_norm**2:
                        raise DecodeError(f"a model whose norm is beyond {self._largest_norm:g}")
                if change is not None:
                    change.see(name, where, block)
                self._sums[name].add_block(where, block)
                values[name] += int(np.count_nonzero(block != 0))  # a fourth of the time that it takes to count floats
                done += 1
        except DecodeError:
            for name, where, block in islice(_blocks(upload), done):
                self._sums[name].add_block(where, -block)
            raise
        return values

    def _sum(self, name: str, size: int) -> ExactSum:
        if name not in self._sums:
            self._sums[name] = ExactSum(size)
        return self._sums[name]


def _vectors(upload: Upload | ReceivedUpload) -> dict[str, Any]:
    return {name: vector for name in AVERAGED if (vector := getattr(upload, name)) is not None}


def _blocks(upload: ReceivedUpload) -> Iterator[tuple[str, slice | Places, NDArray[np.float32]]]:
    """Yield all that is to be added: to which sum, where, and what."""
    for name, vector in _vectors(upload).items():
        for where, block in vector.blocks():
            yield name, where, block
