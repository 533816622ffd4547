"""Runs side by side, as a figure."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UserError
from server.runs.report import Count, Records, curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = (*(f"C{number}" for number in range(10)), "navy", "teal", "black", "gold", "crimson", "peru")
LINE_HEIGHT = 0.05  # of a label, as a part of a figure's height


def require_figures() -> None:
    """Fail before any work is done where figures cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib: pip install 'sparse-proxskip[figures]'")


def draw_comparison(runs: Mapping[str, Records], metric: str, count: Count, *, title: str, path: Path) -> None:
    """Draw the metric against what a client has uploaded, on a logarithmic scale as in the paper."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    ends = {}
    for position, (name, records) in enumerate(runs.items()):
        bits, scores = zip(*curve(records, metric, as_sent=count.as_sent), strict=True)
        ours = name.startswith(("sparse_proxskip", "hybrid"))
        color = COLORS[position % len(COLORS)]
        uploads = [one / count.bits_per_unit for one in bits]
        axes.plot(uploads, scores, "-" if ours else "--", color=color, linewidth=2.2 if ours else 1.4)
        ends[f"{name} {scores[-1]:.4f}"] = (uploads[-1], scores[-1], color)
    best = max(score for records in runs.values() for _, score in curve(records, metric))
    if best > 0:  # methods that fail may leave the picture, but not squeeze it
        axes.set_ylim(0, 1.05 * best)
    what = f"uploaded per client, {count.unit} ({count.what})"
    axes.set(xscale="log", xlabel=what, ylabel=metric, title=title)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    _label(axes, ends)
    figure.savefig(path, dpi=150)


def _label(axes: Axes, ends: Mapping[str, tuple[float, float, str]]) -> None:
    """Write what each curve is beside its end, as near as the others let it."""
    low, high = axes.get_ylim()
    heights = apart([(score - low) / (high - low) for _, score, _ in ends.values()], LINE_HEIGHT)
    for (text, (upload, score, color)), height in zip(ends.items(), heights, strict=True):
        axes.annotate(
            text,
            (upload, min(max(score, low), high)),
            (1.02, height),
            textcoords=axes.transAxes,
            color=color,
            fontsize="small",
            va="center",
            arrowprops={"arrowstyle": "-", "color": color, "alpha": 0.4, "linewidth": 0.7},
        )


def apart(heights: Sequence[float], distance: float) -> list[float]:
    """Return heights of between 0 and 1 in the same order, moved up and then down until none is too near another."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    moved = [min(max(one, 0.0), 1.0) for one in heights]
    for lower, upper in pairwise(order):
        moved[upper] = max(moved[upper], moved[lower] + distance)
    ceiling = 1.0
    for one in reversed(order):
        moved[one] = min(moved[one], ceiling)
        ceiling = moved[one] - distance
    return moved
