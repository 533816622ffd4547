"""Whose uploads are unlike the others': whole clients are left out, so that whoever is counted settles with the mean.

With f liars among n clients, n >= 2 f + 3, there are two looks at the models of a round. First, whoever is several
times as far from the median of all, taken entry by entry, as half of them are. Then Multi-Krum (Blanchard, El Mhamdi,
Guerraoui, Stainer, 2017): the f with the largest score, the sum of the squared distances to the n - f - 2 nearest
others. For that, models that are longer than half of them are cut to that length: honest clients may go far, but not
elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.vectors.entries import Blocks, Entries

Floats = NDArray[np.float64]

MOST_TIMES_THE_DISTANCE = 5.0  # honest clients were at 2.5 at most, of ten that are unlike each other
VALUES_AT_ONCE = 1 << 20  # of all clients together


def most_left_out(clients: int) -> int:
    """Return the largest f of which the selection promises anything."""
    return max((clients - 3) // 2, 0)


def left_out(models: Mapping[str, Entries | Blocks], liars: int, most: int) -> dict[str, str]:
    """Return who is unlike the others, as many as there may be liars, or more where they are far away."""
    names = list(models)
    distances, products = _distances_and_products(list(models.values()))
    usual = float(np.median(distances))
    far = [one for one in _largest(distances, most) if distances[one] > MOST_TIMES_THE_DISTANCE * usual]
    near = [place for place in range(len(names)) if place not in far]
    f = min(liars, most) - len(far)
    unlike = _largest(krum_scores(_squares_of_cut(products[np.ix_(near, near)]), f), f)
    reasons = {names[one]: f"{distances[one]:.2g} from the median, where half are at {usual:.2g}" for one in far}
    return reasons | {names[near[one]]: "unlike those of the others" for one in unlike}


def krum_scores(squares: Floats, liars: int) -> Floats:
    """Return for each the sum of the squared distances to the n - f - 2 nearest others."""
    nearest = max(len(squares) - liars - 2, 1)
    others = np.sort(squares, axis=1)[:, 1:]  # the first is the distance to itself
    scores: Floats = others[:, :nearest].sum(axis=1)
    return scores


def _distances_and_products(vectors: Sequence[Entries | Blocks]) -> tuple[Floats, Floats]:
    """Return how far each is from the median of all, and the inner products of each two."""
    squares, products = np.zeros(len(vectors)), np.zeros((len(vectors), len(vectors)))
    width = max(VALUES_AT_ONCE // len(vectors), 1)
    for parts in zip(*(vector.parts(width) for vector in vectors), strict=True):
        rows = np.stack(parts).astype(np.float64)
        squares += np.square(rows - np.median(rows, axis=0)).sum(axis=1)
        products += rows @ rows.T
    return np.sqrt(squares), products


def _squares_of_cut(products: Floats) -> Floats:
    """Return the squared distances between each two, none of them longer than half of them are."""
    norms = np.sqrt(np.diag(products))
    cut = np.minimum(np.median(norms) / np.maximum(norms, np.finfo(np.float64).tiny), 1.0)
    products = products * np.outer(cut, cut)
    lengths = np.diag(products)
    squares: Floats = np.maximum(lengths[:, None] + lengths - 2 * products, 0.0)
    return squares


def _largest(numbers: Floats, count: int) -> list[int]:
    """Return the places of the largest, of so many."""
    ranked: list[int] = np.argsort(-numbers, kind="stable")[: max(count, 0)].tolist()
    return ranked
