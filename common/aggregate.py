"""The uniform mean of uploads, summed on the CPU as they arrive."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from common.types import Upload


class RunningMean:
    """A float64 sum of uploads; every client counts the same, whatever its number of examples.

    Weights by examples would break the zero sum of the control variates; they belong into a client's loss.
    """

    def __init__(self) -> None:
        self.clients = 0
        self.model_values = 0  # nonzero values that were uploaded, of models
        self.values = 0  # and altogether, as the paper counts them
        self._dtype = torch.float32
        self._sums: dict[str, Tensor] = {}

    def add(self, upload: Upload) -> None:
        """Count the upload of one client, or of a batch of clients (rows)."""
        self._dtype = upload.model.dtype
        self.clients += 1 if upload.model.dim() == 1 else len(upload.model)
        self._count_values(upload)
        for name in ("model", "control_change", "buffers"):
            vector: Tensor | None = getattr(upload, name)
            if vector is None:
                continue
            row = vector.cpu() if vector.dim() == 1 else vector.cpu().sum(dim=0, dtype=torch.float64)
            if name not in self._sums:
                self._sums[name] = row.to(torch.float64, copy=True)
            else:
                total = self._sums[name].numpy()
                np.add(total, row.numpy(), out=total)  # torch would convert the row in memory of its own first

    def _count_values(self, upload: Upload) -> None:
        nonzeros = int(torch.count_nonzero(upload.model))
        self.model_values += nonzeros
        self.values += nonzeros
        if upload.control_change is not None:
            self.values += int(torch.count_nonzero(upload.control_change))

    def mean(self) -> Upload:
        """Return the mean of what was added; the sum is used up by it."""
        sums, self._sums = self._sums, {}  # they are large: not to be kept until somebody forgets this object
        means = {name: total.div_(self.clients).to(self._dtype) for name, total in sums.items()}
        return Upload(model=means["model"], control_change=means.get("control_change"), buffers=means.get("buffers"))
