"""Read an experiment: by its name, from a file or from text, with settings in place of what it says."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from common.errors import UserError
from common.experiment.config import Source, read
from common.experiment.experiment import Experiment
from common.experiment.shipped import experiment_path


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
    path = experiment_path(name_or_path)
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


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
