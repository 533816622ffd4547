"""An experiment: one YAML file, read into frozen dataclasses, that says everything a run depends on."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import yaml

from common.algorithm import Algorithm
from common.config import Range, Source, nearest, read, to_mapping
from common.data import DataFolder
from common.errors import UserError
from common.schedule import Schedule, local_steps
from common.task import OwnDataTask, Problem, Task
from common.types import Precision, RoundPlan

Count = Annotated[int, Range(at_least=1)]
FOLDER = Path(__file__).parent / "experiments"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Codec:
    """The section `codec`: how uploads are written."""

    precision: Precision = "float32"
    encode_in_simulation: bool = True  # false is faster; bytes are not counted then


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that a run depends on, besides the data itself."""

    name: str
    seed: Annotated[int, Range(at_least=0)] = 0
    rounds: Count
    clients: Count
    evaluate_every_rounds: Count = 1
    task: Task
    algorithm: Algorithm
    schedule: Schedule = field(default_factory=Schedule)
    codec: Codec = field(default_factory=Codec)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(
                f"name = {self.name!r} must be usable as a folder's: letters, digits and . _ - (at most 100)"
            )

    def plan(self, round_number: int) -> RoundPlan:
        """Return the plan of a round (counted from 1)."""
        return RoundPlan(
            round=round_number,
            local_steps=local_steps(self.schedule, self.seed, round_number),
            probability=self.schedule.probability,
            learning_rate=self.algorithm.learning_rate,
            density=self.algorithm.round_density(round_number, self.rounds),
            precision=self.codec.precision,
        )

    def load(self, data: DataFolder, device: torch.device) -> Problem:
        """Load the data of all clients, for a simulation."""
        return self.task.load(data, clients=self.clients, seed=self.seed, device=device)

    def load_for_server(self, data: Path | None, device: torch.device) -> Problem:
        """Load what a server needs: all of a public data set, and nothing where clients have their own."""
        if isinstance(self.task, OwnDataTask):
            return self.task.problem([], clients=self.clients, seed=self.seed, device=device)
        return self.load(DataFolder.choose(data), device)

    def is_evaluated(self, round_number: int) -> bool:
        """Say whether the metrics are computed after this round; after the last one they always are."""
        return round_number == self.rounds or round_number % self.evaluate_every_rounds == 0

    def to_yaml(self) -> str:
        """Return the experiment as a file that gives the same experiment again."""
        return yaml.safe_dump(to_mapping(self), sort_keys=False, allow_unicode=True)


def shipped_experiments() -> list[str]:
    """Return the names of the experiments that come with the program."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_experiment(name_or_path: str, settings: Sequence[str] = ()) -> Experiment:
    """Read an experiment by its name or path, with `key=value` settings in place of what the file says.

    A file may keep settings that only one algorithm needs: under `for_algorithm`, by the algorithm's name. A text of
    several lines is no name but the file's content itself: so a server tells its clients what it runs.
    """
    text, path = _text(name_or_path)
    mapping = _parse(text, path)
    own_settings = _checked_own_settings(mapping, path)
    keys = [_apply(mapping, setting) for setting in settings]
    for key, value in own_settings.get(_algorithm_name(mapping), {}).items():
        if key not in keys:
            _put(mapping, key, value, path)
    experiment = read(Experiment, mapping, Source(path, frozenset(keys)))
    kind = experiment.schedule.kind or experiment.algorithm.default_schedule
    return replace(experiment, schedule=replace(experiment.schedule, kind=kind))


def unresolved(name_or_path: str, settings: Sequence[str]) -> dict[str, Any]:
    """Return what a file says, with settings in place, and nothing that an algorithm or a task would choose itself."""
    text, path = _text(name_or_path)
    mapping = _parse(text, path)
    for setting in settings:
        _apply(mapping, setting)
    return mapping


def _text(name_or_path: str) -> tuple[str, str]:
    """Return the content of an experiment, and what to call it."""
    if "\n" in name_or_path:
        return name_or_path, "the server's experiment"
    path = _find(name_or_path)
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def _find(name_or_path: str) -> Path:
    given = Path(name_or_path)
    try:
        if given.is_file():
            return given
    except (OSError, ValueError) as error:  # a name no file can have
        raise UserError(f"there is no experiment {name_or_path[:100]!r}: {error}") from None
    if given.suffix in (".yaml", ".yml") or given.name != name_or_path:
        raise UserError(f"there is no experiment file {given}")
    shipped = FOLDER / f"{name_or_path}.yaml"
    if not shipped.is_file():
        known = shipped_experiments()
        raise UserError(
            f"unknown experiment {name_or_path!r}; the nearest is {nearest(name_or_path, known)!r}; "
            f"known: {', '.join(known)}, or the path of a YAML file"
        )
    return shipped


class _StrictLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice instead of taking the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        mapping = yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: this is not valid YAML: {getattr(error, 'problem', error)}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: this cannot be read as YAML: {error}") from None
    if not isinstance(mapping, dict):
        raise UserError(f"{path}: expected keys and values, such as 'rounds: 100'")
    return mapping


def _checked_own_settings(mapping: dict[str, Any], path: str) -> dict[str, dict[str, Any]]:
    """Take `for_algorithm` out of the mapping: settings that go with one algorithm only, all of them checked."""
    own_settings = mapping.pop("for_algorithm", {})
    if not isinstance(own_settings, dict) or not all(isinstance(part, dict) for part in own_settings.values()):
        raise UserError(f"{path}: for_algorithm: expected a section of settings for each algorithm's name")
    for name, part in own_settings.items():
        trial = copy.deepcopy(mapping)
        for key, value in {**part, "algorithm.name": name}.items():
            _put(trial, str(key), value, f"{path}: for_algorithm.{name}: {key}")
        read(Experiment, trial, Source(f"{path}: for_algorithm.{name}"))
    return own_settings


def _algorithm_name(mapping: dict[str, Any]) -> str:
    section = mapping.get("algorithm")
    return str(section.get("name")) if isinstance(section, dict) else ""


def _apply(mapping: dict[str, Any], setting: str) -> str:
    """Put one `a.b=value` into the mapping and return its key."""
    key, separator, text = setting.partition("=")
    key = key.strip()
    if not separator or not key:
        raise UserError(f"--set {setting}: expected key=value, such as algorithm.density=0.1")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        value = text
    _put(mapping, key, value, f"--set {setting}")
    return key


def _put(mapping: dict[str, Any], key: str, value: object, origin: str) -> None:
    """Set one leaf of a nested mapping by its dotted key."""
    *sections, leaf = key.split(".")
    place = mapping
    for section in sections:
        inner = place.setdefault(section, {})
        if not isinstance(inner, dict):
            raise UserError(f"{origin}: {section} is a value, not a section")
        place = inner
    if isinstance(value, Mapping) or isinstance(place.get(leaf), Mapping):
        raise UserError(f"{origin}: only single values can be set, such as {key}.NAME=VALUE")
    place[leaf] = value
