"""The search for step size and local steps: fair, repeatable, and able to go on."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from common.errors import UserError
from common.experiment.config import to_mapping
from common.experiment.files import load_experiment
from server.research.spaces import OPTIONS, Span, options_with
from server.research.tuning import RATES_A_PERIOD, TRIALS, Search, Trial, best_of, search, write_tuned
from tests.harness.processes import proxskip_server
from tests.harness.small_data import write_cifar10, write_femnist

SETTINGS = ("clients=2", "task.validation_writers=1")


def search_of(**changes: object) -> Search:
    given: dict[str, object] = {
        "experiment": "femnist",
        "settings": SETTINGS,
        "algorithms": ("sparse_proxskip", "randprox_l1"),
        "learning_rates": Span(0.01, 1.0),
        "periods": Span(2, 8),
        "options": OPTIONS,
        "groups": 2,
        "local_steps": 12,
        "seed": 3,
    }
    return Search(**{**given, **changes})  # type: ignore[arg-type]


def trial_of(*scores: float, diverged: bool = False) -> Trial:
    curve = [(1000.0 * (place + 1), score) for place, score in enumerate(scores)]
    return Trial(algorithm="a", group=0, learning_rate=0.1, period=4, options={}, curve=curve, diverged=diverged)


def test_all_methods_are_tried_at_the_same_points_and_these_cover_the_ranges() -> None:
    what = search_of(groups=4)
    assert [what.period(group) for group in range(4)] == sorted(what.period(group) for group in range(4))
    for group in range(4):
        rates = what.rates(group)
        assert rates == sorted(rates)
        assert 0.01 <= rates[0] < 0.0317 < rates[1] < 0.1 < rates[2] < 0.317 < rates[3] <= 1.0
        (one, other) = (what.settings_of(name, group) for name in ("fediht", "fedavg"))
        assert set(one) ^ set(other) == {"algorithm.name=fediht", "algorithm.name=fedavg"}
    assert what.rates(0) != what.rates(1)


def test_options_of_a_method_cover_their_ranges_in_orders_of_their_own() -> None:
    what = search_of(groups=8)
    found = [what.options_of("locodl", group) for group in range(8)]
    assert [*found[0]] == ["upload_density", "control_step"]
    orders = [sorted(range(8), key=lambda group: found[group][name]) for name in found[0]]
    assert orders[0] != orders[1] != [*range(8)] != orders[0]
    for name in found[0]:
        low, high = OPTIONS[name].low, OPTIONS[name].high
        shares = sorted(math.log(one[name] / low, high / low) for one in found)
        assert [int(8 * share) for share in shares] == [*range(8)]
    senders = [what.options_of("tamuna", group)["senders_per_place"] for group in range(8)]
    assert all(isinstance(one, int) and 2 <= one <= 64 for one in senders)
    assert not what.options_of("fediht", 0)


def test_a_range_of_an_option_can_be_given() -> None:
    names = ["randprox_l1", "hybrid", "sparse_proxskip_arena"]
    assert options_with(["l1_strength=1:100", "local_density=0.2:0.5"], names) == {
        **OPTIONS,
        "l1_strength": Span(1, 100),
        "local_density": Span(0.2, 0.5),
    }
    for wrong in ("l1_strength", "=1:2", "arena=2", "control_step=1:2"):
        with pytest.raises(UserError, match=r"--option .*: expected "):
            options_with([wrong], names)


def test_a_trial_has_as_many_local_steps_whatever_its_period_is() -> None:
    what = search_of(groups=3, periods=Span(2, 100), local_steps=1000)
    for group in range(3):
        chosen = load_experiment("femnist", [*what.settings_of("fedavg", group), "algorithm.learning_rate=0.1"])
        assert 1000 - chosen.schedule.period < chosen.rounds * chosen.schedule.period <= 1000


def test_the_best_is_the_highest_score_in_the_end_and_the_first_of_equals() -> None:
    trials = [trial_of(0.9, 0.3), trial_of(0.1, 0.7), trial_of(0.6, 0.7), trial_of(0.99, diverged=True)]
    assert best_of(trials, "a") is trials[1]
    low = [trial_of(score) for score in (-0.4, 0.0, -0.2)]
    assert best_of(low, "a") is low[1]  # R^2 may be zero or less
    assert best_of(trials, "b") is None
    assert best_of(trials[3:], "a") is None


def test_with_a_level_to_reach_the_fewest_bits_win() -> None:
    trials = [trial_of(0.1, 0.3, 0.9), trial_of(0.4, 0.5, 0.5)]
    assert best_of(trials, "a", [0.4]) is trials[1]
    assert best_of(trials, "a", [0.4, 0.6]) is trials[0]
    assert best_of(trials, "a", [2.0, 0.4]) is trials[1]  # nobody got to the highest
    assert best_of(trials, "a", [2.0]) is trials[0]  # nobody got anywhere: the best score


def test_a_search_finds_settings_and_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_femnist(tmp_path / "data")
    folder = tmp_path / "tuning"
    first = list(search(search_of(), tmp_path / "data", folder))
    assert len({(trial.algorithm, trial.period, trial.learning_rate) for trial in first}) == 2 * 2 * RATES_A_PERIOD
    lines = (folder / TRIALS).read_text().splitlines()
    (folder / TRIALS).write_text("".join(f"{line}\n" for line in lines[:3]) + lines[3][:20])  # the last one torn
    again = list(search(search_of(), tmp_path / "data", folder))
    as_written = [json.dumps(asdict(trial)) for trial in first]
    assert sorted(json.dumps(asdict(trial)) for trial in again) == sorted(as_written)
    best = best_of(first, "randprox_l1")
    assert best is not None
    path = write_tuned(search_of(), {"randprox_l1": best}, [], folder)
    tuned = load_experiment(str(path), ["algorithm.name=randprox_l1"])
    assert tuned.algorithm.learning_rate == best.learning_rate
    assert (tuned.schedule.kind, tuned.schedule.period) == ("coin", best.period)
    assert to_mapping(tuned)["algorithm"]["l1_strength"] == best.options["l1_strength"]
    with pytest.raises(UserError, match="holds another search"):
        list(search(search_of(seed=4), tmp_path / "data", folder))


def test_the_command_prints_every_trial_and_leaves_an_experiment(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    folder = tmp_path / "tuning"
    settings = [argument for setting in SETTINGS for argument in ("--set", setting)]
    points = ["--periods", "2:8", "--periods-tried", "1", "--local-steps", "8"]
    search_again = ("tune", "femnist", "fedavg", *settings, *points, "--data", str(tmp_path), "--output", str(folder))
    finished = proxskip_server(*search_again)
    assert finished.returncode == 0, finished.stderr
    *trials, best, where = finished.stdout.splitlines()
    assert [line.partition(":")[0] for line in trials] == [f"{count}/{RATES_A_PERIOD}" for count in range(1, 5)]
    assert all(line.partition(": ")[2].startswith("fedavg, learning rate ") for line in trials)
    assert best.startswith("fedavg: ")
    assert where == f"settings: {folder / 'tuned.yaml'}"
    assert load_experiment(str(folder / "tuned.yaml"), ["algorithm.name=fedavg"]).schedule.period in range(2, 9)
    done = (folder / TRIALS).stat().st_mtime_ns
    reached = proxskip_server(*search_again, "--reach", "0.01")
    assert reached.stdout.splitlines()[-1] == f"settings: {folder / 'fewest-bits.yaml'}"
    assert (folder / TRIALS).stat().st_mtime_ns == done  # the trials are there already


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["femnist", "--periods", "8:2"], "--periods 8:2: expected 0 < LOW <= HIGH"),
        (["digits", "fedavg", "--periods-tried", "1"], "digits: its task has no validation data to tune on"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(arguments: list[str], words: str, tmp_path: Path) -> None:
    finished = proxskip_server("tune", *arguments, cwd=tmp_path)
    assert (finished.returncode, finished.stderr) == (2, f"error: {words}\n")
    assert not list((tmp_path / "runs").glob("*/*.json"))  # another search may have the folder


def test_images_are_tuned_one_by_one(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    small = ("clients=2", "task.width=2", "task.train_samples=40", "task.validation_samples=10")
    what = search_of(experiment="cifar10", settings=small, algorithms=("fedavg",), groups=1, local_steps=2)
    trials = list(search(what, tmp_path, tmp_path / "tuning"))
    assert [trial.learning_rate for trial in trials] == what.rates(0)
    assert all(0 <= trial.score <= 1 for trial in trials)


def test_what_is_wrong_with_clients_own_data_is_said(tmp_path: Path) -> None:
    (tmp_path / "clinics").mkdir()
    (tmp_path / "clinics" / "a.csv").write_text("age,cost\n40,100\n430,200\n")
    experiment = tmp_path / "clinics.yaml"
    task = "{name: tabular, target: cost, columns: {age: 0..120}}"
    experiment.write_text(f"{{name: clinics, rounds: 1, clients: 1, task: {task}, algorithm: {{name: fedavg}}}}")
    what = search_of(experiment=str(experiment), settings=(), algorithms=("fedavg",), groups=1)
    with pytest.raises(UserError, match="row 2: age = '430' is beyond its range"):
        list(search(what, tmp_path / "clinics", tmp_path / "tuning"))


@pytest.mark.parametrize("text", ["1", "2:1", "0:1", "a:b", "1:inf"])
def test_a_wrong_span_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="--periods"):
        Span.read("--periods", text)
