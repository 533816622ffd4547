"""Several runs side by side: their curves, what each needs to reach a level, and where their settings differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from common.units import bytes_text, seconds_text
from server.runs.least import Cost, who_needs_least
from server.watch.rounds import Rounds
from server.watch.run_view import Json, RunView, curve

LEVELS = (0.9, 0.95, 0.98, 1.0)  # of the score that at least two runs reach
COSTS = {
    "sent": Cost("sends the least", lambda cost: f"{bytes_text(cost)} per client", "sends {} times as much"),
    "round": Cost("needs the fewest rounds", lambda cost: f"{cost:.0f}", "needs {} times as many"),
    "time": Cost("takes the least time", seconds_text, "takes {} times as long"),
}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def compare(views: Sequence[RunView]) -> Json:
    """Return what the page shows of several runs; their bytes are counted in one way, which holds for all."""
    summaries = {view.id: view.summary() for view in views}
    all_encoded = all(one["sent_kind"] == "payload" for one in summaries.values())
    kind = "payload" if all_encoded else "values"
    labels = _labels(summaries)
    curves = {view.id: curve(view.run, kind) for view in views}
    metrics = sorted({one["metric"] for one in summaries.values() if one["metric"]})
    bests = [max(one["score"]) for one in curves.values() if one["score"]]
    levels = _levels(bests) if len(metrics) == 1 else []  # a score of one metric says nothing of another
    reach = {view.id: [_reach(view.run.rounds, kind, level) for level in levels] for view in views}
    return {
        "title": _title(summaries),
        "metric": " and ".join(metrics),
        "runs": [
            {
                "id": one,
                "label": labels[one],
                "curve": curves[one],
                "sent_kind": kind,
                **{key: summary[key] for key in ("algorithm", "density", "best", "rounds")},
            }
            for one, summary in summaries.items()
        ],
        "levels": levels,
        "reach": reach,
        "sentences": {cost: _sentence(cost, labels, reach, levels) for cost in COSTS},
        **_settings({view.id: view.run.settings.values for view in views}),
    }


def _labels(summaries: dict[str, Json]) -> dict[str, str]:
    """Return what each run is called: by its method if that tells them apart, else by its path."""
    algorithms = [one["algorithm"] for one in summaries.values()]
    are_apart = len(set(algorithms)) == len(algorithms) and all(algorithms)
    return {key: one["algorithm"] if are_apart else key for key, one in summaries.items()}


def _title(summaries: dict[str, Json]) -> str:
    tasks = sorted({one["task"] for one in summaries.values() if one["task"]})
    how_many = NUMBERS[len(summaries)] if len(summaries) < len(NUMBERS) else str(len(summaries))
    methods = {one["algorithm"] for one in summaries.values()}
    what = "methods" if len(methods) == len(summaries) else "runs"
    return f"{' and '.join(tasks) or 'unknown task'}, {how_many} {what}"


def _levels(bests: list[float]) -> list[float]:
    """Return some levels of the score, the highest of which at least two runs reach if there are two."""
    top = sorted(bests)[-2:][:1]
    if not top or top[0] <= 0:
        return []
    unit = 10.0 ** (math.floor(math.log10(top[0])) - 1)  # of two digits
    return sorted({float(f"{math.floor(part * top[0] / unit) * unit:.2g}") for part in LEVELS} - {0.0})


def _reach(rounds: Rounds, kind: str, level: float) -> dict[str, float] | None:
    """Return what it took to reach a level for the first time, by all rounds and not only those of the curve."""
    place = next((place for place in rounds.evaluated if rounds.scores[place] >= level), None)
    if place is None:
        return None
    return {"sent": rounds.sent(kind)[place], "round": rounds.numbers[place], "time": rounds.elapsed[place]}


def _sentence(cost: str, labels: dict[str, str], reach: dict[str, list[Any]], levels: list[float]) -> str:
    """Return who reaches the highest level at the least cost, and what the others need."""
    if not levels:
        return ""
    costs = {labels[one]: reached[-1][cost] if reached[-1] else None for one, reached in reach.items()}
    return who_needs_least(f"{levels[-1]:.3g}", costs, COSTS[cost])


def _settings(values: dict[str, dict[str, Any]]) -> Json:
    """Tell the settings that are the same in all runs from those that are not."""
    keys = dict.fromkeys(key for one in values.values() for key in one)
    by_key = {key: {run: one.get(key) for run, one in values.items()} for key in keys}
    first = next(iter(values))
    same = {key: one[first] for key, one in by_key.items() if all(value == one[first] for value in one.values())}
    return {"differences": {key: one for key, one in by_key.items() if key not in same}, "same": same}
