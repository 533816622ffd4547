"""Which of the clients that are asked in a round each of them is: what a method deals out is dealt out by that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from common.rounds.state import RoundPlan


def seated(plan: RoundPlan, names: Iterable[str]) -> dict[str, RoundPlan]:
    """Return the plan of each client; a server that is started again seats the same clients alike."""
    ranked = sorted(names, key=lambda name: (len(name), name))  # client-2 before client-10, as in a simulation
    return {name: replace(plan, cohort=len(ranked), seats=(seat,)) for seat, name in enumerate(ranked)}


def counted(plan: RoundPlan, plans: dict[str, RoundPlan], names: Iterable[str]) -> RoundPlan:
    """Return the plan with the seats of those whose uploads were counted."""
    return replace(plan, cohort=len(plans), seats=tuple(plans[name].seats[0] for name in names))
