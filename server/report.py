"""Figures and tables over finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from common.errors import UserError
from common.types import RoundRecord

Records = Sequence[RoundRecord]


def comparison_table(runs: Mapping[str, Records], metric: str) -> Table:
    """Return one row an algorithm: what it reached, what it uploaded, what the worst one's best cost it."""
    scores = {name: [score for _, score in curve(records, metric)] for name, records in runs.items()}
    common = min(max(values) for values in scores.values())
    table = Table(title=f"{metric} and upload of one client")
    for column in ("algorithm", f"final {metric}", f"best {metric}", "Mbit up", f"Mbit up to {metric} {common:.4f}"):
        table.add_column(column, justify="left" if column == "algorithm" else "right", no_wrap=column == "algorithm")
    for name, records in runs.items():
        bits = bits_to_reach(records, metric, common)
        table.add_row(
            name,
            f"{scores[name][-1]:.4f}",
            f"{max(scores[name]):.4f}",
            f"{records[-1].paper_bits_up / 1e6:.3f}",
            "-" if bits is None else f"{bits / 1e6:.3f}",
        )
    return table


def curve(records: Records, metric: str) -> list[tuple[float, float]]:
    """Return (uploaded bits, metric) of the rounds that were evaluated."""
    return [(record.paper_bits_up, record.metrics[metric]) for record in records if metric in record.metrics]


def bits_to_reach(records: Records, metric: str, threshold: float) -> float | None:
    """Return the bits that a client had uploaded when the metric first reached a threshold."""
    return next((bits for bits, score in curve(records, metric) if score >= threshold), None)


def draw_comparison(runs: Mapping[str, Records], *, metric: str, title: str, path: Path) -> None:
    """Draw the metric against uploaded bits, on a logarithmic scale as in the paper."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'sparse-proxskip[figures]'") from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for position, (name, records) in enumerate(runs.items()):
        points = curve(records, metric)
        ours = name.startswith(("sparse_proxskip", "hybrid"))
        bits, scores = [point[0] for point in points], [point[1] for point in points]
        axes.plot(
            bits, scores, "-" if ours else "--", color=_color(position), linewidth=2.2 if ours else 1.4, label=name
        )
    best = max(score for records in runs.values() for _, score in curve(records, metric))
    axes.set(xscale="log", xlabel="uploaded bits a client (32 a nonzero value)", ylabel=metric, title=title)
    axes.set_ylim(_floor(best), best + 0.05 * (best - _floor(best)))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=150)


def _floor(best: float) -> float:
    """Return the lower end of the axis: methods that fail may leave the picture, not squeeze it."""
    return min(0.0, best)


def _color(position: int) -> str:
    """Return one of twenty colours, the ten strong ones first."""
    return f"C{position}" if position < 10 else ("black", "gold", "navy", "teal")[position % 4]
