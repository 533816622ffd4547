"""The configuration: what is read, and the one line that says what is wrong."""

from pathlib import Path

import pytest
import yaml

import strategies
from common.errors import UserError
from common.experiment.files import load_experiment
from common.experiment.shipped import shipped_experiments
from strategies.fediht import FedIHT
from strategies.sparse_proxskip import SparseProxSkip
from tests.harness.quadratics import Quadratics

SMALL = {
    "name": "small",
    "rounds": 3,
    "clients": 2,
    "task": {"name": "digits"},
    "algorithm": {"name": "sparse_proxskip", "density": 0.1, "learning_rate": 0.5},
    "schedule": {"period": 8},
}


def write(folder: Path, content: object) -> str:
    path = folder / "small.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", shipped_experiments())
def test_a_shipped_experiment_says_all_and_can_be_run_again(name: str, tmp_path: Path) -> None:
    experiment = load_experiment(name)
    assert experiment.name == name
    assert experiment.schedule.kind in ("coin", "period")
    assert load_experiment(write(tmp_path, experiment.to_yaml())) == experiment


def test_settings_override_leaves() -> None:
    experiment = load_experiment(
        "digits", ["algorithm.name=fediht", "algorithm.density=0.05", "seed=4", "schedule.kind=coin"]
    )
    assert experiment.algorithm == FedIHT(learning_rate=experiment.algorithm.learning_rate, density=0.05)
    assert experiment.seed == 4
    assert experiment.schedule.kind == "coin"


def test_the_algorithm_chooses_the_schedule_unless_told() -> None:
    assert load_experiment("digits").schedule.kind == "period"
    assert load_experiment("digits", ["algorithm.name=proxskip"]).schedule.kind == "coin"


def test_a_value_that_yaml_cannot_make_sense_of_is_text() -> None:
    assert load_experiment("digits", ["name=2024-99-99"]).name == "2024-99-99"


def test_a_dense_method_has_density_one_in_the_resolved_file(tmp_path: Path) -> None:
    resolved = load_experiment("digits", ["algorithm.name=fedavg"]).to_yaml()
    assert yaml.safe_load(resolved)["algorithm"]["density"] == 1.0
    assert load_experiment(write(tmp_path, resolved)).algorithm.density == 1.0


def test_numbers_in_scientific_notation_without_a_dot() -> None:
    assert load_experiment("digits", ["algorithm.learning_rate=1e-5"]).algorithm.learning_rate == 1e-5


def test_settings_for_one_algorithm_apply_to_it_alone_and_below_set(tmp_path: Path) -> None:
    path = write(
        tmp_path, {**SMALL, "for_algorithm": {"randprox_l1": {"algorithm.l1_strength": 2.5, "schedule.period": 3}}}
    )
    assert isinstance(load_experiment(path).algorithm, SparseProxSkip)
    assert load_experiment(path).schedule.period == 8
    chosen = load_experiment(path, ["algorithm.name=randprox_l1", "schedule.period=5"])
    assert chosen.algorithm.l1_strength == 2.5  # type: ignore[attr-defined]
    assert chosen.schedule.period == 5


def test_a_users_own_plugin_by_module_and_class(tmp_path: Path) -> None:
    path = write(tmp_path, {**SMALL, "task": {"name": "tests.harness.quadratics:Quadratics", "size": 5}})
    experiment = load_experiment(path)
    assert experiment.task == Quadratics(size=5)
    assert load_experiment(write(tmp_path, experiment.to_yaml())) == experiment


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["algorithm.densty=0.1"], ["algorithm.densty", "0.1", "unknown key", "nearest is algorithm.density"]),
        (["algorthm.density=0.1"], ["with --set", "algorthm", "nearest is algorithm"]),
        (["algorithm.name=hybrid", "algorithm.l1_strength=2"], ["unknown key of hybrid"]),
        (["ronds=5"], ["ronds", "5", "unknown key", "nearest is rounds"]),
        (["precision=grid"], ["unknown key", "nearest is codec.precision"]),
        (["density=0.1"], ["unknown key", "nearest is algorithm.density"]),
        (["algorithm.density=-0.5"], ["algorithm.density = -0.5", "above 0 and at most 1"]),
        (["algorithm.density=0"], ["algorithm.density = 0", "above 0 and at most 1"]),
        (["algorithm.density=much"], ["algorithm.density = 'much'", "a number above 0"]),
        (["algorithm.density=nan"], ["algorithm.density", "a number above 0"]),
        (["rounds=0"], ["rounds = 0", "a whole number at least 1"]),
        (["rounds=2.5"], ["rounds = 2.5", "a whole number"]),
        (["rounds=true"], ["rounds = True", "a whole number"]),
        (["seed=-1"], ["seed = -1", "at least 0"]),
        (["schedule.kind=dice"], ["schedule.kind = 'dice'", "one of coin, period"]),
        (["schedule.period=0.5"], ["schedule.period = 0.5", "at least 1"]),
        (["codec.precision=float16"], ["codec.precision = 'float16'", "float32, bfloat16"]),
        (["algorithm.name=sparse_proxkip"], ["algorithm.name = 'sparse_proxkip'", "nearest is 'sparse_proxskip'"]),
        (["algorithm.name=../fedavg"], ["algorithm.name", "unknown"]),
        (["algorithm.name=nosuchmodule:Thing"], ["algorithm.name", "cannot import"]),
        (["algorithm.name=pathlib:Path"], ["algorithm.name", "not a concrete subclass"]),
        (["task.name=digit"], ["task.name = 'digit'", "nearest is 'digits'"]),
        (["name=a/b"], ["name = 'a/b'", "usable as a folder"]),
        (["name=.."], ["name = '..'", "usable as a folder"]),
        (["algorithm.name=[a]"], ["algorithm.name = ['a']", "unknown"]),
        (["algorithm.name=.x:y"], ["algorithm.name", "cannot import"]),
        (["algorithm.name=common.rounds.algorithm:Algorithm"], ["algorithm.name", "not a concrete subclass"]),
        (["algorithm.learning_rate=1e-46"], ["algorithm.learning_rate = '1e-46'", "a number above 0"]),
        (["task.ridge=1e300"], ["task.ridge", "a number"]),
        (["task.size_variance=1e10"], ["task.size_variance", "at most 10"]),
        (["schedule.period=1e300"], ["schedule.period", "at most 1e+06"]),
        (["algorithm.name=hybrid", "algorithm.density=0.5"], ["algorithm", "local_density = 0.3", "at least density"]),
        (["density"], ["--set density", "key=value"]),
        (["algorithm=fedavg"], ["--set algorithm=fedavg", "single values"]),
        (["seed.x=1"], ["--set seed.x=1", "not a section"]),
    ],
)
def test_what_does_not_fit_is_one_line(settings: list[str], words: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, {**SMALL, "seed": 1})
    with pytest.raises(UserError) as caught:
        load_experiment(path, settings)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("rounds: [", ["line 1", "not valid YAML"]),
        ("rounds: 1\nrounds: 2", ["line 1", "given twice"]),
        ("- a", ["expected keys and values"]),
        ("", ["expected keys and values"]),
        ({k: v for k, v in SMALL.items() if k != "rounds"}, ["rounds", "missing", "a whole number at least 1"]),
        ({k: v for k, v in SMALL.items() if k != "task"}, ["task.name is missing", "digits"]),
        ({**SMALL, "algorithm": {"name": "fedavg"}}, ["algorithm.learning_rate", "missing"]),
        ({**SMALL, "algorithm": "fedavg"}, ["algorithm", "expected a section"]),
        ({**SMALL, "for_algorithm": 3}, ["for_algorithm", "expected a section"]),
        ({**SMALL, "for_algorithm": {"fedavgg": {"seed": 2}}}, ["for_algorithm.fedavgg", "nearest is 'fedavg'"]),
        ({**SMALL, "for_algorithm": {"fedavg": {"algorithm.densty": 1}}}, ["for_algorithm.fedavg", "densty"]),
        ({**SMALL, "for_algorithm": {"fedavg": {1: 2}}}, ["for_algorithm.fedavg", "unknown key"]),
        ("seed: " + "9" * 5000, ["line 1", "more than 20 digits"]),
        ("seed: 2024-99-99", ["cannot be read as YAML"]),
        ("[" * 5000, ["line 1", "in each other"]),
        ("a: &b c\nd: *b", ["line 1", "anchors and aliases are not read"]),
        ("a: *b", ["line 1", "aliases are not read"]),
        ("a: !!python/name:os.system 1", ["line 1", "tags and aliases are not read"]),
        ("a: {<<: {b: 1}}", ["line 1", "merges (<<) are not read"]),
        ("# " + "x" * 100_000, ["100000 are the most"]),
        ({**SMALL, "for_algorithm": {"sparse_proxskip": {"algorithm": {"density": 1}}}}, ["for_algorithm", "single"]),
    ],
)
def test_a_file_that_does_not_fit_is_named(content: object, words: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, content)
    with pytest.raises(UserError) as caught:
        load_experiment(path)
    message = str(caught.value)
    assert path in message
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        load_experiment(str(path))


def test_a_broken_plugin_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_method.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(tmp_path)])
    with pytest.raises(UserError, match=r"strategies/broken_method\.py cannot be imported: ModuleNotFoundError"):
        load_experiment("digits", ["algorithm.name=broken_method"])


def test_an_impossible_name_is_refused() -> None:
    with pytest.raises(UserError, match="there is no experiment"):
        load_experiment("x" * 300)


def test_unknown_experiments_are_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match="nearest is 'blogfeedback'"):
        load_experiment("blogfedback")
    with pytest.raises(UserError, match=r"no experiment file nowhere\.yaml"):
        load_experiment("nowhere.yaml")
