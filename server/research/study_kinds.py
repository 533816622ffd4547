"""The kinds of studies: what is reached in the end, what it costs to get there, and how quantities move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from server.research.study import (
    Cell,
    Curves,
    Effort,
    Panel,
    Sample,
    Study,
    StudyFigure,
    Table,
    TableColumn,
    cost_to_reach,
    final,
)

NEVER = math.inf  # in a paper's table: a level that was not reached
PaperRows = Mapping[str, Sequence[float]]  # a number for each column


@dataclass(frozen=True)
class Quantity:
    """What is shown of a run's end."""

    key: str
    name: str
    digits: int
    scale: float = 1.0
    paper: PaperRows | None = None
    evaluations: int = 1  # the last ones, of which it is the mean: what swings from one to the next needs several


SENT = Quantity("bytes", "sent, kB", 1, 1e-3)


@dataclass(frozen=True, kw_only=True)
class EndStudy(Study):
    """What every method reaches in the end, at several densities."""

    by_sparsity: Mapping[str, str]
    quantities: Sequence[Quantity]
    drawn: Sequence[StudyFigure]

    @property
    def experiments(self) -> Mapping[str, str]:
        """Return the experiment of each sparsity."""
        return self.by_sparsity

    @property
    def figures(self) -> Sequence[StudyFigure]:
        """Return the curves at one sparsity."""
        return self.drawn

    def table(self, curves: Curves, effort: Effort) -> Table:
        """Return the quantities in the end, and what a client had sent by then; no column that is empty."""
        wanted = [(quantity, name) for quantity in (*self.quantities, SENT) for name in self.experiments]
        places = {name: place for place, name in enumerate(self.experiments)}
        rows = {
            method.label: [
                _end(self.curves_of(method, name, curves, effort), quantity, method.label, places[name])
                for quantity, name in wanted
            ]
            for method in self.methods
        }
        kept = [place for place, _ in enumerate(wanted) if any(cells[place].of for cells in rows.values())]
        columns = [TableColumn(wanted[place][1], wanted[place][0].digits, wanted[place][0].name) for place in kept]
        return Table(columns, {label: [cells[place] for place in kept] for label, cells in rows.items()})


def _end(runs: Sequence[Sequence[Sample]], quantity: Quantity, label: str, place: int = 0) -> Cell:
    """Return where a quantity ended, beside what the paper says of this method."""
    ends = [quantity.scale * final(curve, quantity.key, quantity.evaluations) for curve in runs]
    paper = (quantity.paper or {}).get(label, ())
    beside = paper[place] if place < len(paper) else None
    has_it = any(quantity.key in sample for curve in runs for sample in curve)
    return Cell([end for end in ends if math.isfinite(end)], len(ends) if has_it else 0, beside)


@dataclass(frozen=True, kw_only=True)
class CostStudy(Study):
    """What a client uploads until a metric reaches a level."""

    experiment: str
    metric: str
    levels: Mapping[str, float]  # by how they are written
    paper: PaperRows  # Mbit, to the first levels
    lowest: float  # of the figure
    ends: Sequence[Quantity] = ()  # which show what a method reaches at all

    @property
    def experiments(self) -> Mapping[str, str]:
        """Return the one experiment."""
        return {"all": self.experiment}

    @property
    def figures(self) -> Sequence[StudyFigure]:
        """Return the metric against uploaded bits."""
        levels = list(self.levels.values())
        panels = [
            Panel(self.metric, self.metric, lowest=self.lowest, levels=levels),
            Panel("train_loss", "train loss", logarithmic=True),
        ]
        return [StudyFigure("curves", "all", panels)]

    def table(self, curves: Curves, effort: Effort) -> Table:
        """Return Mbit as the paper counts, kilobytes as they are sent, and where it ends."""
        mbit = [TableColumn(f"to {name}", 3, "Mbit") for name in self.levels]
        kilobytes = [TableColumn(f"to {name}", 2, SENT.name) for name in self.levels]
        table = Table([*mbit, *kilobytes, *(TableColumn("in the end", one.digits, one.name) for one in self.ends)])
        for method in self.methods:
            runs = self.curves_of(method, "all", curves, effort)
            paper = self.paper.get(method.label, ())
            levels = self.levels.values()
            bits = [self._cost(runs, level, "bits", 1e-6, beside) for level, beside in zip_longest(levels, paper)]
            sent = [self._cost(runs, level, "bytes", 1e-3) for level in levels]
            table.rows[method.label] = [*bits, *sent, *(_end(runs, one, method.label) for one in self.ends)]
        return table

    def _cost(
        self, runs: Sequence[Sequence[Sample]], level: float, cost: str, scale: float, paper: float | None = None
    ) -> Cell:
        costs = [cost_to_reach(curve, self.metric, level, cost) for curve in runs]
        return Cell([scale * one for one in costs if one is not None], len(costs), paper)


@dataclass(frozen=True, kw_only=True)
class CourseStudy(Study):
    """How quantities move in the course of training."""

    experiment: str
    quantities: Sequence[Quantity]
    panels: Sequence[Panel]

    @property
    def experiments(self) -> Mapping[str, str]:
        """Return the one experiment."""
        return {"all": self.experiment}

    @property
    def figures(self) -> Sequence[StudyFigure]:
        """Return all panels in one figure."""
        return [StudyFigure("curves", "all", self.panels)]

    def table(self, curves: Curves, effort: Effort) -> Table:
        """Return where the quantities end."""
        table = Table([TableColumn(quantity.name, quantity.digits) for quantity in self.quantities])
        for method in self.methods:
            runs = self.curves_of(method, "all", curves, effort)
            table.rows[method.label] = [_end(runs, quantity, method.label) for quantity in self.quantities]
        return table
