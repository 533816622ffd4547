"""What TopK costs in copies of the vector."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.measure import Ratio, median_seconds
from bench.vectors import SPARSITIES, one_pass
from common.vectors import select_long
from common.vectors.sparsity import WarmTopK, top_k

Actions = dict[str, Callable[[], object]]

REPETITIONS = 15
SMALL = 176_402  # parameters of a small ResNet
WAYS = ("numpy", "fast")
MOST_PASSES = {0.95: 6.0, 0.99: 3.0}
MOST_WARM_PASSES = {"numpy": None, "fast": 2.0}
MOST_FOR_AN_ENTRY = 4.0  # of a short vector, beside one of a long vector: there is no cliff between


def run(vector: Tensor) -> list[Ratio]:
    """Return passes at several sparsities, with and without the extra `fast`."""
    passes = [ratio for sparsity in SPARSITIES for ratio in _passes(vector.clone(), sparsity)]
    return [*passes, _short(vector.clone())]


def _passes(vector: Tensor, sparsity: float) -> list[Ratio]:
    density, out = 1 - sparsity, torch.empty_like(vector)
    change = 0.002 * torch.randn_like(vector)  # thresholds move by some thousandths in a local step
    actions: Actions = {"pass": one_pass(vector), "step": partial(vector.add_, change)}
    for way in WAYS:
        actions[f"cold {way}"] = by(way, top_k, vector, density, out)
        actions[f"warm {way}"] = by(way, WarmTopK(), vector, density, out)
    seconds = median_seconds(actions, REPETITIONS)
    ratios = []
    for way in WAYS:
        name = f"{sparsity:.0%} of {len(vector) / 1e6:.1f} M, {way}"
        cold, warm = (seconds[f"{start} {way}"] / seconds["pass"] for start in ("cold", "warm"))
        ratios += [
            Ratio(f"TopK / copy, {name}", cold, MOST_PASSES.get(sparsity)),
            Ratio(f"TopK from the last threshold / copy, {name}", warm, MOST_WARM_PASSES[way]),
        ]
    return ratios


def by(way: str, action: Callable[..., object], *arguments: Any) -> Callable[[], None]:  # noqa: ANN401 - of `action`
    """Return an action, done with the extra `fast` or without; where that is not installed, both are the same."""

    def done() -> None:
        before = select_long.FAST_FROM
        select_long.FAST_FROM = before if way == "fast" else sys.maxsize
        action(*arguments)
        select_long.FAST_FROM = before

    return done


def _short(vector: Tensor) -> Ratio:
    """Measure what an entry of a vector costs that is too short for numba, beside one of a long vector."""
    actions: Actions = {}
    for name, one in {"short": vector[:SMALL].clone(), "long": vector}.items():
        actions[f"step of {name}"] = partial(one.add_, 0.002 * torch.randn_like(one))
        actions[name] = by("numpy", WarmTopK(), one, 0.1, torch.empty_like(one))
    seconds = median_seconds(actions, REPETITIONS)
    ratio = (seconds["short"] / SMALL) / (seconds["long"] / len(vector))
    return Ratio(f"TopK of an entry of {SMALL:,} / of {len(vector) / 1e6:.1f} M", ratio, MOST_FOR_AN_ENTRY)
