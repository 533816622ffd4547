"""What a study of the paper's results is: runs of methods, and what is made of them.

A study is a file in server/research/studies/ that defines STUDY. It says which runs it needs; studies that need the
same run share it. What it makes of them is a list of tables, and figures are drawn from the same curves.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from server.research.batch import lasting
from server.research.statistics import mean_and_error
from server.runs.report import bits_to_reach

Sample = dict[str, float]  # what was seen after a round: round, bits, bytes, the metrics, norms
Curves = Mapping["StudyRun", Sequence[Sample]]

MISSING = "not reached"


@dataclass(frozen=True)
class StudyRun:
    """One simulation that a study needs."""

    experiment: str
    settings: tuple[str, ...]
    participation: float = 1.0

    @property
    def name(self) -> str:
        """Return a name for its file: readable, and another one for every other run."""
        told = f"{self.experiment} {self.settings} {self.participation} {self.load().to_yaml()}"
        return f"{self.experiment}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    def load(self) -> Experiment:
        """Return the experiment that is run."""
        return load_experiment(self.experiment, self.settings)


@dataclass(frozen=True)
class Method:
    """What is compared: a row of a table, a curve of a figure."""

    label: str
    settings: tuple[str, ...]
    participation: float = 1.0


def method(name: str, *settings: str, label: str = "", participation: float = 1.0) -> Method:
    """Return an algorithm with settings of its own, named after it unless there is a label."""
    exact = "codec.precision=float32"  # as the paper has it, unless settings say otherwise
    return Method(label or name, (f"algorithm.name={name}", exact, *settings), participation)


@dataclass(frozen=True)
class Effort:
    """How long runs are, and how many."""

    local_steps: int  # of every run, whatever its period: so that all take the same time
    seeds: int
    evaluations: int = 60
    rounds: Mapping[str, int] = field(default_factory=dict)  # of experiments that are as long as that instead
    most_rounds: int | None = None  # of a run with short periods

    @property
    def length(self) -> str:
        """Return how long a run is, in words."""
        if self.rounds:
            return ", ".join(f"{rounds} rounds of {experiment}" for experiment, rounds in self.rounds.items())
        at_most = f", {self.most_rounds} rounds at most" if self.most_rounds else ""
        return f"{self.local_steps} local steps per run{at_most}"

    def local_steps_of(self, experiment: str, period: int) -> int:
        """Return how long a run of an experiment is."""
        if experiment in self.rounds:
            return self.rounds[experiment] * period
        return min(self.local_steps, self.most_rounds * period) if self.most_rounds else self.local_steps


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """Methods, at a density or several, and what the paper says of them."""

    title: str
    methods: Sequence[Method]
    full: Effort
    quick: Effort
    depends_on_seed: bool  # false: the start is fixed, and only a coin-flip schedule makes a difference
    remarks: Sequence[str] = ()

    @property
    @abstractmethod
    def experiments(self) -> Mapping[str, str]:
        """Return the experiment files, by what their column is called."""

    @abstractmethod
    def table(self, curves: Curves, effort: Effort) -> Table:
        """Return what the study found, beside what the paper says."""

    @property
    @abstractmethod
    def figures(self) -> Sequence[StudyFigure]:
        """Return what is drawn."""

    def runs(self, effort: Effort) -> list[StudyRun]:
        """Return all runs that it needs, those of the first seed first."""
        found = [
            run
            for seed in range(effort.seeds)
            for experiment in self.experiments.values()
            for one in self.methods
            for run in self.runs_of(one, experiment, effort)[seed : seed + 1]
        ]
        return list(dict.fromkeys(found))

    def runs_of(self, chosen: Method, experiment: str, effort: Effort) -> list[StudyRun]:
        """Return the runs of one method, a seed each; only one where all would be the same."""
        loaded = load_experiment(experiment, chosen.settings)
        seeds = effort.seeds if self.depends_on_seed or loaded.schedule.kind == "coin" else 1
        period = math.floor(loaded.schedule.period)
        length = lasting(effort.local_steps_of(experiment, period), period, effort.evaluations)
        return [
            StudyRun(experiment, (*chosen.settings, *length, f"seed={seed}"), chosen.participation)
            for seed in range(seeds)
        ]

    def curves_of(self, chosen: Method, column: str, curves: Curves, effort: Effort) -> list[Sequence[Sample]]:
        """Return the curves of one method, a seed each."""
        return [curves[run] for run in self.runs_of(chosen, self.experiments[column], effort)]


@dataclass(frozen=True)
class Cell:
    """One number of a table: ours over the seeds, and the paper's."""

    seeds: Sequence[float]  # without those that did not get there
    of: int  # how many seeds there were; none where a method has no such number
    paper: float | None = None

    @property
    def mean(self) -> float | None:
        """Return the mean over seeds."""
        return float(mean_and_error(self.seeds)[0]) if self.seeds else None

    @property
    def error(self) -> float | None:
        """Return the standard error of the mean; None for a single seed."""
        return float(mean_and_error(self.seeds)[1]) if len(self.seeds) > 1 else None

    def text(self, digits: int) -> str:
        """Return mean and error, how many seeds got there if not all, and in brackets what the paper says."""
        ours = self._ours(digits)
        if self.paper is None:
            return ours
        return f"{ours} ({MISSING if math.isinf(self.paper) else f'{self.paper:g}'})"

    def _ours(self, digits: int) -> str:
        if self.mean is None:
            return MISSING if self.of else "-"
        error = "" if self.error is None else f" ± {self.error:.{digits}f}"
        some = "" if len(self.seeds) == self.of else f" in {len(self.seeds)} of {self.of} runs"
        return f"{self.mean:.{digits}f}{error}{some}"


@dataclass(frozen=True)
class TableColumn:
    """A column of a table."""

    name: str
    digits: int
    metric: str = ""  # what is in it: columns of the same are a table of their own


@dataclass
class Table:
    """Rows of cells under columns."""

    columns: Sequence[TableColumn]
    rows: dict[str, list[Cell]] = field(default_factory=dict)

    def markdown(self) -> str:
        """Return a table for each metric as Markdown, few columns wide."""
        metrics = dict.fromkeys(column.metric for column in self.columns)
        return "\n".join(map(self._markdown_of, metrics))

    def _markdown_of(self, metric: str) -> str:
        """Return the columns of one metric under its name: ours, and in brackets the paper's."""
        places = [place for place, column in enumerate(self.columns) if column.metric == metric]
        header = ["method", *(self.columns[place].name for place in places)]
        lines = [header, ["---"] + ["---:"] * len(places)]
        for label, cells in self.rows.items():
            lines.append([label, *(cells[place].text(self.columns[place].digits) for place in places)])
        in_paper = any(cells[place].paper is not None for cells in self.rows.values() for place in places)
        beside = ", the paper's in brackets" if in_paper else ""
        title = f"**{metric}**{beside}\n\n" if metric else ""
        return title + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def records(self) -> list[dict[str, object]]:
        """Return the table as records for JSON."""
        return [
            {
                "method": label,
                "column": f"{column.metric}, {column.name}" if column.metric else column.name,
                "mean": cell.mean,
                "standard_error": cell.error,
                "seeds": list(cell.seeds),
                "seeds_tried": cell.of,
                "paper": None if cell.paper is None or math.isinf(cell.paper) else cell.paper,
            }
            for label, cells in self.rows.items()
            for column, cell in zip(self.columns, cells, strict=True)
        ]


@dataclass(frozen=True)
class StudyFigure:
    """Curves of all methods in panels side by side."""

    name: str
    column: str  # of the study's experiments
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Panel:
    """One picture: a quantity against another."""

    quantity: str
    label: str
    against: str = "bits"  # or: round
    logarithmic: bool = False
    lowest: float | None = None
    levels: Sequence[float] = ()


def final(curve: Sequence[Sample], quantity: str, evaluations: int = 1) -> float:
    """Return a quantity in the end, the mean of the last evaluations; not a number if the run diverged."""
    ends = [sample.get(quantity, math.nan) for sample in curve[-evaluations:]]
    return sum(ends) / len(ends) if ends else math.nan


def cost_to_reach(curve: Sequence[Sample], quantity: str, level: float, cost: str) -> float | None:
    """Return what had been uploaded when a quantity first reached a level."""
    return bits_to_reach([(sample[cost], sample[quantity]) for sample in curve if quantity in sample], level)
