"""Methods that came after the paper, or that it only cites: rows of a study as soon as their settings were searched."""

from __future__ import annotations

from collections.abc import Sequence

from common.experiment.files import unresolved
from server.research.study import Method, method

RIVALS = (
    "fedcomloc_com",
    "fedcomloc_local",
    "locodl",
    "tamuna",
    "sparse_proxskip_arena",
)  # fedcomloc_global is server_pruning, which is there already


def searched(names: Sequence[str], *experiments: str) -> tuple[str, ...]:
    """Return those of the names for which all experiments have settings: without them a row would tell nothing."""
    with_settings = [unresolved(experiment, []).get("for_algorithm", {}) for experiment in experiments]
    return tuple(name for name in names if all(name in own for own in with_settings))


def rivals_on(*experiments: str) -> tuple[Method, ...]:
    """Return the rivals whose settings all experiments have."""
    return tuple(method(name) for name in searched(RIVALS, *experiments))


def rivals_in_part(experiment: str, shares: Sequence[tuple[str, float]]) -> tuple[Method, ...]:
    """Return the rivals on an experiment when only these shares of the clients take part, each with its name."""
    return tuple(
        method(name, label=f"{name}, {share}", participation=participation)
        for name in searched(RIVALS, experiment)
        for share, participation in shares
    )
