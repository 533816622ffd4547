"""Figures and tables over finished runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from common.errors import UserError
from common.rounds.records import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Records = Sequence[RoundRecord]
COLORS = (*(f"C{number}" for number in range(10)), "navy", "teal", "black", "gold", "crimson", "peru")
LINE_HEIGHT = 0.05  # of a label, as a part of a figure's height


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a client had uploaded when the metric first reached a level."""

    level: float
    upload_bits: float | None  # None: it never did


@dataclass(frozen=True, kw_only=True)
class RunInComparison:
    """What a run reached, and what a client uploaded for it."""

    name: str
    final: float
    best: float
    upload_bits: float
    to_reach: list[Cost]


@dataclass(frozen=True)
class Count:
    """One way to count what a client has uploaded; a table or a figure has one only."""

    as_sent: bool
    unit: str
    bits_per_unit: float
    what: str


SENT = Count(True, "kB", 8e3, "as sent")
VALUES = Count(False, "kB", 8e3, "4 bytes for each nonzero value")
PAPER = Count(False, "Mbit", 1e6, "32 bit for each nonzero value")


def count_for(runs: Mapping[str, Records], *, paper_bits: bool) -> Count:
    """Return the count that holds for all runs: a simulation may not have encoded what it would have sent."""
    if paper_bits:
        return PAPER
    encoded = all(record.payload_bytes_up is not None for records in runs.values() for record in records)
    return SENT if encoded else VALUES


def compared(
    runs: Mapping[str, Records], metric: str, count: Count, levels: Sequence[float] = ()
) -> list[RunInComparison]:
    """Put runs side by side; without levels, the one is taken that all of them reached."""
    curves = {name: curve(records, metric, as_sent=count.as_sent) for name, records in runs.items()}
    scores = {name: [score for _, score in points] for name, points in curves.items()}
    levels = levels or [min(max(values) for values in scores.values())]
    return [
        RunInComparison(
            name=name,
            final=scores[name][-1],
            best=max(scores[name]),
            upload_bits=points[-1][0],
            to_reach=[Cost(level=level, upload_bits=bits_to_reach(points, level)) for level in levels],
        )
        for name, points in curves.items()
    ]


def comparison_table(rows: Sequence[RunInComparison], metric: str, count: Count) -> Table:
    """Return one row per run: what it reached, what it uploaded, and what it had uploaded when it reached a level."""
    table = Table(title=f"{metric}, and {count.unit} that a client has uploaded ({count.what})")
    for column in ("run", "final", "best", "upload", *(f"to {cost.level:.4g}" for cost in rows[0].to_reach)):
        table.add_column(column, justify="left" if column == "run" else "right", no_wrap=True)
    for row in rows:
        costs = [row.upload_bits, *(cost.upload_bits for cost in row.to_reach)]
        shown = ("-" if bits is None else f"{bits / count.bits_per_unit:.3f}" for bits in costs)
        table.add_row(row.name, f"{row.final:.4f}", f"{row.best:.4f}", *shown)
    return table


def common_metric(runs: Mapping[str, Records]) -> str:
    """Return the test metric that all runs have."""
    found = [{name for record in records for name in record.metrics} for records in runs.values()]
    shared = sorted(name for name in set.intersection(*found) if name.startswith("test_"))
    if not shared:
        raise UserError("these runs have no test metric in common")
    return shared[0]


def curve(records: Records, metric: str, *, as_sent: bool = False) -> list[tuple[float, float]]:
    """Return (uploaded bits of a client, metric) of the rounds that were evaluated."""
    sent = accumulate(8 * (record.payload_bytes_up or 0) / record.clients for record in records)
    bits = list(sent) if as_sent else [record.paper_bits_up for record in records]
    return [(up, record.metrics[metric]) for up, record in zip(bits, records, strict=True) if metric in record.metrics]


def bits_to_reach(points: Sequence[tuple[float, float]], threshold: float) -> float | None:
    """Return the bits that a client had uploaded when the metric first reached a threshold."""
    return next((bits for bits, score in points if score >= threshold), None)


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
