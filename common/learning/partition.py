"""Deal samples out to clients, unevenly, as real federations are."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.randomness import stream
from common.ranges import Range

Concentration = Annotated[float, Range(at_least=1e-3, at_most=1e6)]  # small: clients' labels differ; large: alike
SizeVariance = Annotated[float, Range(at_least=0, at_most=10)]  # of the logarithm of the clients' sizes


def dirichlet_split(
    labels: NDArray[np.int64],
    clients: int,
    *,
    concentration: float,
    size_variance: float,
    generator: np.random.Generator,
) -> list[NDArray[np.int64]]:
    """Give every client a lognormal share of the samples, with its own Dirichlet mix of labels.

    A small concentration makes the mixes differ, a large one makes them alike. No client is left without a sample.
    """
    if clients > len(labels):
        raise UserError(f"clients = {clients}: there are only {len(labels)} samples to deal out")
    classes = int(labels.max()) + 1
    sizes = _shares(generator.lognormal(sigma=size_variance**0.5, size=clients), len(labels))
    pools = [list(generator.permutation(np.flatnonzero(labels == label))) for label in range(classes)]
    mixes = generator.dirichlet(np.full(classes, concentration), size=clients)
    return [np.sort(_draw(pools, mix, size, generator)) for mix, size in zip(mixes, sizes, strict=True)]


def _shares(weights: NDArray[np.float64], total: int) -> list[int]:
    """Cut `total` into whole parts of at least 1, in proportion to the weights."""
    spare = total - len(weights)
    edges = np.floor(spare * np.cumsum(weights) / weights.sum() + 1e-9).astype(int)
    edges[-1] = spare
    return [int(part) + 1 for part in np.diff(edges, prepend=0)]


def _draw(
    pools: list[list[int]], mix: NDArray[np.float64], size: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Take `size` samples from the pools in the given mix, as far as each pool lasts."""
    taken: list[int] = []
    while len(taken) < size:
        left = np.array([len(pool) for pool in pools])
        odds = np.where(left > 0, mix, 0.0)
        odds = odds / odds.sum() if odds.sum() > 0 else left / left.sum()
        wanted = generator.multinomial(size - len(taken), odds)
        for pool, count in zip(pools, np.minimum(wanted, left), strict=True):
            taken += [pool.pop() for _ in range(count)]
    return np.array(taken, dtype=np.int64)


def hold_out(count: int, of: int, client: str, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which of its examples a client trains on and which it holds out: always the same ones."""
    order = stream(seed, f"held out of {client}").permutation(of)
    return np.sort(order[count:]), np.sort(order[:count])
