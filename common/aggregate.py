"""The uniform mean of uploads, summed on the CPU as they arrive and forgotten at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from common.exact_sum import ExactSum
from common.types import Entries, ReceivedUpload, Upload


class ControlSum:
    """How far control variates are from summing to zero; each of its answers uses it up."""

    def __init__(self) -> None:
        self._sum: ExactSum | None = None
        self._norms = 0.0

    @property
    def clients(self) -> int:
        """Return of how many clients there are controls."""
        return self._sum.count if self._sum else 0

    def add(self, controls: Tensor) -> None:
        """Add the control of one client, or of a batch of clients (rows)."""
        rows = controls.numpy(force=True).reshape(-1, controls.shape[-1])
        self._sum = self._sum or ExactSum(controls.shape[-1])
        self._sum.add_rows(rows)
        self._norms += float(np.linalg.norm(rows.astype(np.float64), axis=-1).sum())

    def relative_norm(self) -> float:
        """Return |mean of h_i| / mean of |h_i|, which is zero up to rounding while the sum of the h_i is."""
        return float(np.linalg.norm(self._sum.total())) / self._norms if self._sum and self._norms else 0.0

    def mean(self) -> Tensor:
        """Return the mean of the controls in float32."""
        assert self._sum is not None
        return torch.from_numpy((self._sum.total() / self.clients).astype(np.float32))


class RunningMean:
    """An exact sum of uploads; every client counts the same, whatever its number of examples.

    Weights by examples would break the zero sum of the control variates; they belong into a client's loss.
    """

    def __init__(self) -> None:
        self.clients = 0
        self.model_values = 0  # nonzero values that were uploaded, of models
        self.values = 0  # and altogether, as the paper counts them
        self._dtype = torch.float32
        self._sums: dict[str, ExactSum] = {}

    def add(self, upload: Upload | ReceivedUpload) -> int:
        """Count the upload of one client, or of a batch of clients (rows); return its values as the paper counts."""
        before = self.values
        for name in ("model", "control_change", "buffers"):
            vector: Tensor | Entries | None = getattr(upload, name)
            if vector is None:
                continue
            values = self._add(name, vector)
            if name == "model":
                self.model_values += values
            if name != "buffers":
                self.values += values
        self.clients = self._sums["model"].count
        return self.values - before

    def _add(self, name: str, vector: Tensor | Entries) -> int:
        """Add to one sum, and return how many values were not zero."""
        size = vector.size if isinstance(vector, Entries) else vector.shape[-1]
        if name not in self._sums:
            self._sums[name] = ExactSum(size)
        total = self._sums[name]
        if isinstance(vector, Tensor):
            self._dtype = vector.dtype
            rows = vector.numpy(force=True)
            total.add(rows) if rows.ndim == 1 else total.add_rows(rows)
            return int(np.count_nonzero(rows))
        if vector.places is None:
            total.add(vector.values)
        else:
            total.add_at(vector.places, vector.values)
        return int(np.count_nonzero(vector.values))

    def mean(self) -> Upload:
        """Return the mean of what was added; the sums are used up by it."""
        sums, self._sums = self._sums, {}  # they are large: not to be kept until somebody forgets this object
        means: dict[str, Tensor] = {}
        for name in list(sums):
            total = torch.from_numpy(sums.pop(name).total())
            means[name] = total.div_(self.clients).to(self._dtype)
        return Upload(model=means["model"], control_change=means.get("control_change"), buffers=means.get("buffers"))
