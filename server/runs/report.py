"""Runs side by side: what each reached, what a client uploaded for it, and what that says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from common.errors import UserError
from common.rounds.records import BITS_A_VALUE, RoundRecord
from server.runs.least import Cost, who_needs_least

Records = Sequence[RoundRecord]


@dataclass(frozen=True)
class Count:
    """One way to count what a client has uploaded; a table or a figure has one only."""

    as_sent: bool
    unit: str
    bits_per_unit: float
    digits: int
    what: str

    def text(self, bits: float) -> str:
        """Return an amount, without its unit."""
        return f"{bits / self.bits_per_unit:.{self.digits}f}"

    @property
    def cost(self) -> Cost:
        """Return how amounts are told in a sentence."""
        return Cost(
            "uploads the least",
            lambda bits: f"{self.text(bits)} {self.unit} per client",
            "uploads {} times as much",
        )


SENT = Count(True, "kB", 8e3, 1, "as sent")
VALUES = Count(False, "kB", 8e3, 1, "4 bytes for each nonzero value")
PAPER = Count(False, "Mbit", 1e6, 3, "32 bit for each nonzero value")


def count_for(runs: Mapping[str, Records], *, paper_bits: bool) -> Count:
    """Return the count that holds for all runs: a simulation may not have encoded what it would have sent."""
    if paper_bits:
        return PAPER
    encoded = all(record.payload_bytes_up is not None for records in runs.values() for record in records)
    return SENT if encoded else VALUES


@dataclass(frozen=True, kw_only=True)
class ToReach:
    """What a client had uploaded when the metric first reached a level."""

    level: float
    upload_bits: float | None  # None: it never did


@dataclass(frozen=True, kw_only=True)
class RunInComparison:
    """What a run reached, and what a client uploaded for it."""

    name: str
    density: float  # of its model
    final: float
    best: float
    upload_bits: float
    bits_a_value: float | None  # that were sent for each value that was kept, all included; None: nothing was encoded
    to_reach: list[ToReach]


def compared(
    runs: Mapping[str, Records],
    metric: str,
    count: Count,
    levels: Sequence[float] = (),
    *,
    densities: Mapping[str, float],
) -> list[RunInComparison]:
    """Put runs side by side; without levels, the one is taken that all of them reached."""
    curves = {name: curve(records, metric, as_sent=count.as_sent) for name, records in runs.items()}
    scores = {name: [score for _, score in points] for name, points in curves.items()}
    levels = levels or [min(max(values) for values in scores.values())]
    return [
        RunInComparison(
            name=name,
            density=densities[name],
            final=scores[name][-1],
            best=max(scores[name]),
            upload_bits=points[-1][0],
            bits_a_value=bits_a_value(runs[name]) if count.as_sent else None,
            to_reach=[ToReach(level=level, upload_bits=bits_to_reach(points, level)) for level in levels],
        )
        for name, points in curves.items()
    ]


def comparison(rows: Sequence[RunInComparison], metric: str, count: Count) -> Group:
    """Return a comparison as a table under its title, and what it says."""
    beside = "; bits: per kept value" if count.as_sent else ""
    title = f"{metric}, and uploads per client ({count.unit}, {count.what}{beside})"
    sentences = comparison_sentences(rows, count)
    return Group(*map(Text, ["", title]), _comparison_table(rows, count), *map(Text, sentences))


def _comparison_table(rows: Sequence[RunInComparison], count: Count) -> Table:
    """Return one row per run: what it keeps and reached, what a client uploaded in all and to reach each level."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")  # all of a long name, and no number is cut
    levels = [f"to {cost.level:.4g}" for cost in rows[0].to_reach]
    for column in ("kept", "final", "best", *["bits"] * count.as_sent, "uploads", *levels):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        bits = [] if row.bits_a_value is None else [f"{row.bits_a_value:.1f}"]
        uploads = [row.upload_bits, *(cost.upload_bits for cost in row.to_reach)]
        amounts = ("-" if one is None else count.text(one) for one in uploads)
        table.add_row(Text(row.name), f"{row.density:.3g}", f"{row.final:.4f}", f"{row.best:.4f}", *bits, *amounts)
    return table


def comparison_sentences(rows: Sequence[RunInComparison], count: Count) -> list[str]:
    """Return what the table says: who needs the least for each level, and what a dense model came to."""
    costs = {
        one.level: {row.name: row.to_reach[place].upload_bits for row in rows}
        for place, one in enumerate(rows[0].to_reach)
    }
    cheapest = [who_needs_least(f"{level:.4g}", by_run, count.cost) for level, by_run in costs.items()]
    return [*cheapest, *_dense_beside_sparse(rows)]


def _dense_beside_sparse(rows: Sequence[RunInComparison]) -> list[str]:
    """Say what a dense model and a sparse one came to, where there are both: they are not the same kind of result."""
    ranked = sorted(rows, key=lambda row: -row.final)
    dense = next((row for row in ranked if row.density == 1), None)
    sparse = next((row for row in ranked if row.density < 1), None)
    if dense is None or sparse is None:
        return []
    kept = f"{100 * sparse.density:.3g} %"
    return [
        f"{dense.name} keeps all weights and ends at {dense.final:.4f}; "
        f"{sparse.name} keeps {kept} and ends at {sparse.final:.4f}."
    ]


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


def bits_a_value(records: Records) -> float:
    """Return how many bits were sent for each value that was uploaded, places and all else included."""
    sent = sum(8 * (record.payload_bytes_up or 0) / record.clients for record in records)
    return BITS_A_VALUE * sent / records[-1].paper_bits_up


def bits_to_reach(points: Sequence[tuple[float, float]], threshold: float) -> float | None:
    """Return the bits that a client had uploaded when the metric first reached a threshold."""
    return next((bits for bits, score in points if score >= threshold), None)
