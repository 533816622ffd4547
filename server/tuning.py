"""Random search for step size and mean number of local steps, as the paper tunes, and the same for every method.

All methods get the same points, drawn from one seed, and so the same budget. A trial is judged on validation data: the
test set is never looked at. What is done is on disk, so a search that was interrupted goes on.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import yaml

from common.data import DataFolder
from common.divergence import DivergedError
from common.durable import writing
from common.errors import UserError
from common.experiment import load_experiment, unresolved
from common.randomness import stream
from common.task import Problem, Task
from server.simulate import Simulation

TRIALS = "trials.jsonl"
TUNED = "tuned.yaml"
SEARCH = "search.json"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Span:
    """A range of positive numbers, drawn from uniformly in their logarithm."""

    low: float
    high: float

    @classmethod
    def read(cls, option: str, text: str) -> Span:
        """Read `LOW:HIGH`."""
        try:
            low, high = map(float, text.split(":"))
        except ValueError:
            raise UserError(f"{option} {text}: expected LOW:HIGH, such as 1e-5:1e-3") from None
        if not 0 < low <= high < math.inf:
            raise UserError(f"{option} {text}: expected 0 < LOW <= HIGH")
        return cls(low, high)

    def at(self, share: float) -> float:
        """Return the number at a share of the way, between 0 and 1."""
        return self.low * math.pow(self.high / self.low, share)


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, for which methods, and how long."""

    experiment: str
    settings: tuple[str, ...]
    algorithms: tuple[str, ...]
    learning_rates: Span
    periods: Span
    trials: int
    seed: int

    def settings_of(self, algorithm: str, number: int) -> list[str]:
        """Return the settings of a trial: its point is the same for every method."""
        first, second = stream(self.seed, "tuning", number).random(2)
        rate, period = self.learning_rates.at(first), round(self.periods.at(second))
        return [
            *self.settings,
            f"algorithm.name={algorithm}",
            f"algorithm.learning_rate={rate:.3g}",
            f"schedule.period={period}",
            "codec.encode_in_simulation=false",
        ]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one point gave."""

    algorithm: str
    number: int
    learning_rate: float
    period: float
    rounds: int
    score: float | None  # of the last round, on validation data; None: it diverged


def search(what: Search, data: Path | None, folder: Path) -> Iterator[Trial]:
    """Run all trials that are not done yet, on all cores; yield each, the old ones first, and write what was found."""
    trials = _begun(what, folder)
    yield from trials
    done = {(trial.algorithm, trial.number) for trial in trials}
    points = [(name, number) for number in range(what.trials) for name in what.algorithms]
    left = [(name, number, what.settings_of(name, number)) for name, number in points if (name, number) not in done]
    workers = min(os.cpu_count() or 1, max(1, len(left)))
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for future in as_completed([pool.submit(_run, what.experiment, *one, data) for one in left]):
            trials.append(future.result())
            with writing(folder / TRIALS) as path, path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(trials[-1])) + "\n")
            yield trials[-1]
    with writing(folder / TUNED) as path:
        path.write_text(_tuned(what, trials), encoding="utf-8")


def best_of(trials: Sequence[Trial], algorithm: str) -> Trial | None:
    """Return the trial of a method with the best score; None if all diverged."""
    scores = {trial: trial.score for trial in trials if trial.algorithm == algorithm and trial.score is not None}
    return max(scores, key=lambda trial: (scores[trial], -trial.number), default=None)


def _begun(what: Search, folder: Path) -> list[Trial]:
    """Return the trials that an interrupted search has left, if it was this one."""
    description = json.dumps(asdict(what), indent=2) + "\n"
    with writing(folder / SEARCH) as path:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(description, encoding="utf-8")
        if path.read_text(encoding="utf-8") != description:
            raise UserError(f"{folder} holds another search ({path.name} says which); name another folder")
        return [Trial(**json.loads(line)) for line in _whole_lines(folder / TRIALS)]


def _whole_lines(path: Path) -> list[str]:
    """Return the lines of a file, of which a crash may have torn the last: that one is taken away."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return whole.splitlines()


def _run(experiment: str, algorithm: str, number: int, settings: Sequence[str], data: Path | None) -> Trial:
    chosen = load_experiment(experiment, settings)
    problem = _problem(chosen.task, chosen.clients, chosen.seed, data)
    try:
        *_, last = Simulation(chosen, problem, CPU).rounds()
        score = last.metrics.get(problem.metric.replace("test_", "validation_"))
        if score is None:
            raise UserError(f"{chosen.name}: its task has no validation data to tune on")
    except DivergedError:
        score = None
    return Trial(
        algorithm=algorithm,
        number=number,
        learning_rate=chosen.algorithm.learning_rate,
        period=chosen.schedule.period,
        rounds=chosen.rounds,
        score=score,
    )


@lru_cache(maxsize=1)
def _problem(task: Task, clients: int, seed: int, data: Path | None) -> Problem:
    return task.load(DataFolder.choose(data), clients=clients, seed=seed, device=CPU)


def _tuned(what: Search, trials: Sequence[Trial]) -> str:
    """Return the experiment as a file with the best settings of each method, and how they were found."""
    mapping = unresolved(what.experiment, what.settings)  # so that each method still has its own kind of schedule
    best = {name: trial for name in what.algorithms if (trial := best_of(trials, name)) is not None}
    own: dict[str, dict[str, Any]] = mapping.setdefault("for_algorithm", {})
    for name, trial in best.items():
        own.setdefault(name, {})
        own[name] |= {"algorithm.learning_rate": trial.learning_rate, "schedule.period": trial.period}
    how = (
        f"# Found by random search, the same {what.trials} points for each method: learning rates from "
        f"{what.learning_rates.low:g} to {what.learning_rates.high:g},\n"
        f"# periods from {what.periods.low:g} to {what.periods.high:g}, both log-uniform, seed {what.seed}; "
        "the best on validation data after the last round:\n"
    )
    scores = "".join(f"#   {name}: {trial.score:.4f} (trial {trial.number})\n" for name, trial in best.items())
    return how + scores + yaml.safe_dump(mapping, sort_keys=False)
