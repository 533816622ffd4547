"""Random search for step size and mean number of local steps, as the paper tunes, and the same for every method.

All methods get the same points, drawn from one seed, and so the same budget. A range is cut into as many parts as
numbers are drawn from it, one from each, so that few trials still cover it. Options that only some methods have are
drawn once for each period, in another order. A trial is judged on validation data: the test set is never looked at.
What is done is on disk, so a search that was interrupted goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from common.errors import DivergedError, UserError
from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment, unresolved
from common.experiment.plain_yaml import write_yaml
from common.learning.task import Problem
from common.randomness import stream
from common.rounds.algorithm import Algorithm
from common.storage.disk import writing
from server.research.batch import CPU, lasting, on_all_cores, problem_of
from server.research.spaces import Span
from server.runs.report import bits_to_reach
from server.simulation.simulation import Simulation
from server.simulation.sweep import Curve, Point, Sweep

RATES_A_PERIOD = 4  # they run as one sweep
EVALUATIONS = 40  # of a trial, about
TRIALS = "trials.jsonl"
TUNED = "tuned.yaml"
FEWEST_BITS = "fewest-bits.yaml"
SEARCH = "search.json"


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, for which methods, and how long."""

    experiment: str
    settings: tuple[str, ...]
    algorithms: tuple[str, ...]
    learning_rates: Span
    periods: Span
    options: Mapping[str, Span]  # by name, of the methods that have them
    groups: int  # of trials that share a period
    local_steps: int  # of a trial, so that all take the same time whatever their period is
    seed: int

    @property
    def trials(self) -> int:
        """Return how many there are of each method."""
        return self.groups * RATES_A_PERIOD

    def period(self, group: int) -> int:
        """Return the period of a group of trials."""
        return round(self.periods.at(self._share("period", group, self.groups)))

    def rates(self, group: int) -> list[float]:
        """Return the step sizes of a group, in ascending order."""
        shares = [self._share(f"rate {group}", part, RATES_A_PERIOD) for part in range(RATES_A_PERIOD)]
        return [float(f"{self.learning_rates.at(share):.3g}") for share in shares]

    def settings_of(self, algorithm: str, group: int) -> list[str]:
        """Return all settings of a group of trials but the step size."""
        period = self.period(group)
        settings = [
            *self.settings,
            f"algorithm.name={algorithm}",
            f"schedule.period={period}",
            *lasting(self.local_steps, period, EVALUATIONS),
        ]
        return settings + [f"algorithm.{name}={value:g}" for name, value in self.options_of(algorithm, group).items()]

    def options_of(self, algorithm: str, group: int) -> dict[str, float]:
        """Return the options of a method that are searched, as a group of trials has them."""
        found = {}
        for option in fields(plugins.find(Algorithm.plugin_package, algorithm, Algorithm)):
            if option.name in self.options:
                order = stream(self.seed, f"tuning order of {option.name}").permutation(self.groups)
                value = self.options[option.name].at(self._share(option.name, int(order[group]), self.groups))
                found[option.name] = round(value) if isinstance(option.default, int) else float(f"{value:.3g}")
        return found

    def _share(self, what: str, part: int, parts: int) -> float:
        return (part + float(stream(self.seed, f"tuning {what}", part).random())) / parts


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one point gave."""

    algorithm: str
    group: int
    learning_rate: float
    period: float
    options: dict[str, float]  # that were searched
    curve: Curve  # validation score against uploaded bits
    diverged: bool

    @property
    def score(self) -> float:
        """Return the score in the end; a trial that diverged is worse than any other."""
        return -math.inf if self.diverged else self.curve[-1][1]

    def bits_to(self, level: float) -> float:
        """Return what a client had uploaded when the score first reached a level."""
        bits = bits_to_reach(self.curve, level)
        return math.inf if bits is None else bits

    @property
    def described(self) -> str:
        """Return the point in words."""
        options = "".join(f", {name.replace('_', ' ')} {value:g}" for name, value in self.options.items())
        return f"learning rate {self.learning_rate:g}, period {self.period:g}{options}"

    @property
    def settings(self) -> dict[str, float]:
        """Return what was found, as settings of an experiment."""
        options = {f"algorithm.{name}": value for name, value in self.options.items()}
        return {"algorithm.learning_rate": self.learning_rate, "schedule.period": self.period, **options}


def search(what: Search, data: Path | None, folder: Path) -> Iterator[Trial]:
    """Run all trials that are not done yet, on all cores; yield each, the old ones first."""
    trials = _begun(what, folder)
    yield from trials
    done = {(trial.algorithm, trial.group) for trial in trials}
    groups = [(name, group) for group in range(what.groups) for name in what.algorithms]
    left = [(what, *one) for one in groups if one not in done]
    try:
        for _, fresh in on_all_cores(_run, left, data):
            with writing(folder / TRIALS) as path, path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([asdict(trial) for trial in fresh]) + "\n")
            trials += fresh
            yield from fresh
    except UserError:
        if not trials:  # nothing was begun: the folder is free for another search
            (folder / SEARCH).unlink()
        raise


def best_of(trials: Sequence[Trial], algorithm: str, levels: Sequence[float] = ()) -> Trial | None:
    """Return a method's trial with the best score, or with the fewest bits to the highest level that any reached."""
    scored = [trial for trial in trials if trial.algorithm == algorithm and not trial.diverged]
    for level in sorted(levels, reverse=True):
        bits = [trial.bits_to(level) for trial in scored]
        if bits and min(bits) < math.inf:
            return scored[bits.index(min(bits))]
    return max(scored, key=lambda trial: trial.score, default=None)


def write_tuned(what: Search, best: Mapping[str, Trial | None], levels: Sequence[float], folder: Path) -> Path:
    """Write the experiment as a file with the settings that were found for each method, and how they were found."""
    mapping = unresolved(what.experiment, what.settings)  # so that each method still has its own kind of schedule
    own: dict[str, dict[str, Any]] = mapping.setdefault("for_algorithm", {})
    found = {name: trial for name, trial in best.items() if trial is not None}
    for name, trial in found.items():
        own[name] = own.get(name, {}) | trial.settings
    highest = ", ".join(f"{level:g}" for level in sorted(levels))
    chosen = f"the fewest bits to the highest of {highest} that was reached" if levels else "the best in the end"
    rates, periods = what.learning_rates, what.periods
    how = (
        f"# Found by `proxskip-server tune`: random search, the same {what.trials} points for each method,\n"
        f"# learning rates from {rates.low:g} to {rates.high:g}, periods from {periods.low:g} to {periods.high:g}, "
        f"both log-uniform;\n# {what.local_steps} local steps each, seed {what.seed}.\n"
        f"# Chosen on validation data: {chosen}. The scores there:\n"
    )
    scores = "".join(f"#   {name}: {trial.score:.4f}\n" for name, trial in found.items())
    with writing(folder / (FEWEST_BITS if levels else TUNED)) as path:
        path.write_text(how + scores + write_yaml(mapping), encoding="utf-8")
        return path


def _begun(what: Search, folder: Path) -> list[Trial]:
    """Return the trials that an interrupted search has left, if it was this one."""
    description = json.dumps(asdict(what), indent=2) + "\n"
    with writing(folder / SEARCH) as path:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(description, encoding="utf-8")
        if path.read_text(encoding="utf-8") != description:
            raise UserError(f"{folder} holds another search ({path.name} says which); name another folder")
        return [Trial(**trial) for line in _whole_lines(folder / TRIALS) for trial in json.loads(line)]


def _whole_lines(path: Path) -> list[str]:
    """Return the lines of a file, of which a crash may have torn the last: that one is taken away."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return whole.splitlines()


def _run(job: tuple[Search, str, int], data: Path | None) -> list[Trial]:
    """Run the trials of one method that share a period."""
    what, algorithm, group = job
    settings, rates = what.settings_of(algorithm, group), what.rates(group)
    chosen = load_experiment(what.experiment, [*settings, f"algorithm.learning_rate={rates[0]}"])
    problem = problem_of(chosen, data)
    score = problem.metric.replace("test_", "validation_")
    if score not in problem.evaluate(chosen.algorithm.evaluated(problem.initial_state())):
        raise UserError(f"{chosen.name}: its task has no validation data to tune on")
    if problem.batched:
        points = Sweep(chosen, problem, rates, score).run()
    else:
        points = [_alone(_at(chosen, rate), problem, score) for rate in rates]
    return [
        Trial(
            algorithm=algorithm,
            group=group,
            learning_rate=point.learning_rate,
            period=chosen.schedule.period,
            options=what.options_of(algorithm, group),
            curve=point.curve,
            diverged=point.diverged,
        )
        for point in points
    ]


def _at(experiment: Experiment, learning_rate: float) -> Experiment:
    return replace(experiment, algorithm=replace(experiment.algorithm, learning_rate=learning_rate))


def _alone(experiment: Experiment, problem: Problem, score: str) -> Point:
    """Run one trial of a problem whose clients cannot run as rows of one tensor."""
    point = Point(experiment.algorithm.learning_rate)
    try:
        for record in Simulation(experiment, problem, CPU).rounds():
            if record.metrics:
                point.curve.append((record.paper_bits_up, record.metrics[score]))
    except DivergedError:
        point.diverged = True
    return point
