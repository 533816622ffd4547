"""Figures and tables over finished runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from rich.table import Table

from common.errors import UserError
from common.rounds.records import RoundRecord

Records = Sequence[RoundRecord]
COLORS = (*(f"C{number}" for number in range(10)), "navy", "teal", "black", "gold", "crimson", "peru")


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


def compared(
    runs: Mapping[str, Records], metric: str, levels: Sequence[float] = (), *, as_sent: bool
) -> list[RunInComparison]:
    """Put runs side by side; without levels, the one is taken that all of them reached."""
    curves = {name: curve(records, metric, as_sent=as_sent) for name, records in runs.items()}
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


def comparison_table(runs: Mapping[str, Records], metric: str, levels: Sequence[float] = (), *, as_sent: bool) -> Table:
    """Return one row an algorithm: what it reached, what it uploaded, and what it had uploaded when it reached a level.

    Without levels, the one is taken that all algorithms reached.
    """
    rows = compared(runs, metric, levels, as_sent=as_sent)
    what = "as sent" if as_sent else "32 bit a nonzero value"
    table = Table(title=f"{metric} and upload of one client, Mbit ({what})")
    for column in ("algorithm", "final", "best", "upload", *(f"to {cost.level:.4g}" for cost in rows[0].to_reach)):
        table.add_column(column, justify="left" if column == "algorithm" else "right", no_wrap=True)
    for row in rows:
        costs = ("-" if cost.upload_bits is None else f"{cost.upload_bits / 1e6:.3f}" for cost in row.to_reach)
        table.add_row(row.name, f"{row.final:.4f}", f"{row.best:.4f}", f"{row.upload_bits / 1e6:.3f}", *costs)
    return table


def common_metric(runs: Mapping[str, Records]) -> str:
    """Return the test metric that all runs have."""
    found = [{name for record in records for name in record.metrics} for records in runs.values()]
    shared = sorted(name for name in set.intersection(*found) if name.startswith("test_"))
    if not shared:
        raise UserError("these runs have no test metric in common")
    return shared[0]


def all_encoded(runs: Mapping[str, Records]) -> bool:
    """Say whether all runs encoded their uploads, so that their bytes can be compared."""
    return all(record.payload_bytes_up is not None for records in runs.values() for record in records)


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


def draw_comparison(runs: Mapping[str, Records], metric: str, *, as_sent: bool, title: str, path: Path) -> None:
    """Draw the metric against uploaded bits, on a logarithmic scale as in the paper."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for position, (name, records) in enumerate(runs.items()):
        bits, scores = zip(*curve(records, metric, as_sent=as_sent), strict=True)
        ours = name.startswith(("sparse_proxskip", "hybrid"))
        color = COLORS[position % len(COLORS)]
        axes.plot(bits, scores, "-" if ours else "--", color=color, linewidth=2.2 if ours else 1.4, label=name)
    best = max(score for records in runs.values() for _, score in curve(records, metric))
    if best > 0:  # methods that fail may leave the picture, but not squeeze it
        axes.set_ylim(0, 1.05 * best)
    what = "as sent" if as_sent else "32 a nonzero value"
    axes.set(xscale="log", xlabel=f"uploaded bits a client ({what})", ylabel=metric, title=title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=150)
