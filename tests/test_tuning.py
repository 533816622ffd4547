"""The search for step size and local steps: fair, repeatable, and able to go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import UserError
from common.experiment import load_experiment
from server.tuning import TRIALS, TUNED, Search, Span, Trial, best_of, search
from tests.small_data import write_femnist

SETTINGS = ("clients=2", "rounds=3", "task.validation_writers=1")


def search_of(**changes: object) -> Search:
    given: dict[str, object] = {
        "experiment": "femnist",
        "settings": SETTINGS,
        "algorithms": ("sparse_proxskip", "proxskip"),
        "learning_rates": Span(0.01, 1.0),
        "periods": Span(2, 8),
        "trials": 2,
        "seed": 3,
    }
    return Search(**{**given, **changes})  # type: ignore[arg-type]


def test_all_methods_are_tried_at_the_same_points() -> None:
    what = search_of()
    one, other = ([what.settings_of(name, number) for number in range(20)] for name in ("fediht", "fedavg"))
    assert [point[-3:] for point in one] == [point[-3:] for point in other]
    rates = [float(point[-3].partition("=")[2]) for point in one]
    assert 0.01 <= min(rates) < 0.1 < max(rates) <= 1.0
    assert len(set(rates)) == 20


def test_the_best_is_the_highest_score_and_the_first_of_equals() -> None:
    scores = [None, 0.3, 0.7, 0.7]
    trials = [
        Trial(algorithm="a", number=number, learning_rate=0.1, period=4, rounds=1, score=score)
        for number, score in enumerate(scores)
    ]
    best = best_of(trials, "a")
    assert best is not None
    assert best.number == 2
    low = [replace(trials[1], score=score) for score in (-0.4, 0.0, -0.2)]
    assert best_of(low, "a") == low[1]  # R^2 may be zero or less
    assert best_of(trials, "b") is None
    assert best_of(trials[:1], "a") is None


def test_a_search_finds_settings_and_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_femnist(tmp_path / "data")
    folder = tmp_path / "tuning"
    first = list(search(search_of(), tmp_path / "data", folder))
    assert {(trial.algorithm, trial.number) for trial in first} == {
        (name, number) for name in ("sparse_proxskip", "proxskip") for number in (0, 1)
    }
    lines = (folder / TRIALS).read_text().splitlines()
    (folder / TRIALS).write_text("".join(f"{line}\n" for line in lines[:3]) + lines[3][:20])  # the last one torn
    again = list(search(search_of(), tmp_path / "data", folder))
    assert sorted(again, key=str) == sorted(first, key=str)
    best = best_of(first, "proxskip")
    assert best is not None
    tuned = load_experiment(str(folder / TUNED), ["algorithm.name=proxskip"])
    assert tuned.algorithm.learning_rate == best.learning_rate
    assert (tuned.schedule.kind, tuned.schedule.period) == ("coin", best.period)
    with pytest.raises(UserError, match="holds another search"):
        list(search(search_of(seed=4), tmp_path / "data", folder))


def test_a_task_without_validation_data_cannot_be_tuned(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no validation data"):
        list(search(search_of(experiment="digits", settings=("rounds=2",), trials=1), None, tmp_path))


@pytest.mark.parametrize("text", ["1", "2:1", "0:1", "a:b", "1:inf"])
def test_a_wrong_span_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="--periods"):
        Span.read("--periods", text)
