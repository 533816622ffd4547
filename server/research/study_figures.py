"""Figures of a study, in the paper's form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from server.research.statistics import mean_and_error
from server.research.study import Panel, Sample, StudyFigure
from server.runs.figure import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Seeds = Sequence[Sequence[Sample]]  # the curves of one method


def draw_study(curves: Mapping[str, Seeds], figure: StudyFigure, *, title: str, path: Path) -> None:
    """Draw the panels of a study: means over seeds, shaded by their standard error."""
    from matplotlib.figure import Figure

    columns = min(len(figure.panels), 3)
    rows = math.ceil(len(figure.panels) / columns)
    drawing = Figure(figsize=(5.0 * columns + 2.5, 4.2 * rows), layout="constrained")
    for place, panel in enumerate(figure.panels, 1):
        axes = drawing.add_subplot(rows, columns, place)
        for position, (label, seeds) in enumerate(curves.items()):
            _draw_seeds(axes, label, seeds, panel, COLORS[position % len(COLORS)])
        for level in panel.levels:
            axes.axhline(level, color="grey", linewidth=0.8, linestyle=":")
        if panel.against == "bits":
            axes.set(xscale="log", xlabel="uploaded bits per client (32 per nonzero value)")
        else:
            axes.set(xlabel=panel.against)
        if panel.logarithmic:
            axes.set_yscale("log")
        if panel.lowest is not None:
            axes.set_ylim(bottom=panel.lowest)
        axes.set_ylabel(panel.label)
        axes.grid(alpha=0.3)
    drawing.suptitle(title)
    handles, labels = drawing.axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside right upper", fontsize="small")
    drawing.savefig(path, dpi=120)


def _draw_seeds(axes: Axes, label: str, seeds: Seeds, panel: Panel, color: str) -> None:
    """Draw one method's curve, as far as all its seeds got."""
    seen = [[sample for sample in curve if panel.quantity in sample] for curve in seeds]
    shortest = min(map(len, seen))
    if not shortest:
        return
    mean, error = mean_and_error([[sample[panel.quantity] for sample in curve[:shortest]] for curve in seen])
    places, _ = mean_and_error([[sample[panel.against] for sample in curve[:shortest]] for curve in seen])
    ours = label.startswith(("sparse_proxskip", "hybrid"))
    axes.plot(places, mean, "-" if ours else "--", color=color, linewidth=2.0 if ours else 1.3, label=label)
    if len(seeds) > 1:
        axes.fill_between(places, mean - error, mean + error, color=color, alpha=0.2)
