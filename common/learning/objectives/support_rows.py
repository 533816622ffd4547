"""Products of Gram matrices with sparse points whose supports change little from call to call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float32]


class SupportRows:
    """The rows of each client's Gram matrix at the support of its point: all that a product with it needs.

    They are kept side by side, and only those of entries that have come to a support are fetched again. In which
    order they are added up depends on the points so far: so this lasts for one round, and a round can be repeated.
    """

    def __init__(self, gram: Numbers) -> None:
        self._gram = gram  # (N, d, d)
        self._size = gram.shape[-1]
        self._rows = np.empty((len(gram), 0, self._size), np.float32)  # (N, slots, d)
        self._places = np.empty((len(gram), 0), np.int64)  # of each slot, in the flattened points
        self._held = np.zeros(gram.shape[:2], np.bool_)  # which entries have a slot

    def products(self, points: Numbers) -> Numbers:
        """Return G_i w_i for the points (N, d) of all clients."""
        support = points != 0
        came = np.flatnonzero(support > self._held)
        if came.size and not self._fetch(came, points):
            self._gather(support)
        products: Numbers = np.matmul(points.take(self._places)[:, None, :], self._rows)[:, 0]
        return products

    def _fetch(self, came: NDArray[np.int64], points: Numbers) -> bool:
        """Give entries that have come the slots of some that have gone; say whether there were enough."""
        clients, needed = np.unique(came // self._size, return_counts=True)
        free = points.take(self._places[clients]) == 0
        free &= np.cumsum(free, axis=1) <= needed[:, None]
        row, slot = np.nonzero(free)
        if row.size < came.size:
            return False
        client = clients[row]
        held = self._held.reshape(-1)
        held[self._places[client, slot]] = False
        held[came] = True
        self._places[client, slot] = came
        self._rows[client, slot] = self._gram.reshape(-1, self._size)[came]
        return True

    def _gather(self, support: NDArray[np.bool_]) -> None:
        """Fetch all rows; a client of fewer than the others gets some of entries that are zero."""
        most = int(np.count_nonzero(support, axis=1).max())
        entries = np.argsort(~support, axis=1, kind="stable")[:, :most]
        self._rows = np.take_along_axis(self._gram, entries[:, :, None], axis=1)
        self._places = entries + self._size * np.arange(len(support))[:, None]
        self._held[:] = False
        np.put_along_axis(self._held, entries, True, axis=1)
