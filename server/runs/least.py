"""Who reaches a level at the least cost, in a sentence: for tables in a terminal, and for the page of `watch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from common.say import listed

TWO_DIGITS = 10  # are enough below this


@dataclass(frozen=True)
class Cost:
    """How a kind of cost is told."""

    least: str  # what is said of who has the least
    amount: Callable[[float], str]
    beside: str  # how the others are compared with it


def who_needs_least(level: str, costs: Mapping[str, float | None], kind: Cost) -> str:
    """Say who reaches a level at the least cost, and what the others need; None is the cost of who does not."""
    reached = sorted((cost, name) for name, cost in costs.items() if cost is not None)
    if not reached:
        return f"No run reaches {level}."
    (least, first), *others = reached
    never = [name for name, cost in costs.items() if cost is None]
    beside = listed([f"{name} {kind.beside.format(_times(cost, least))}" for cost, name in others])
    absent = f"{listed(never)} {'does' if len(never) == 1 else 'do'} not get there" if never else ""
    rest = "; ".join(filter(None, (beside, absent)))
    return f"To reach {level}, {first} {kind.least}: {kind.amount(least)}." + (f" {rest}." if rest else "")


def _times(cost: float, least: float) -> str:
    ratio = cost / least if least else 1.0
    return f"{ratio:.2g}" if ratio < TWO_DIGITS else f"{ratio:.0f}"
