"""Read an experiment: by its name, from a file or from text, with settings in place of what it says."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import PublicError, UserError
from common.experiment.config import Source, read
from common.experiment.experiment import Experiment
from common.experiment.plain_yaml import DEEPEST, LONGEST_TEXT, read_yaml
from common.experiment.shipped import experiment_path, shipped_path

TOLD = "the server's experiment"
MOST_ALGORITHMS = 100  # with settings of their own


def load_experiment(name_or_path: str, settings: Sequence[str] = ()) -> Experiment:
    """Read an experiment by its name or path, with `key=value` settings in place of what the file says.

    A file may keep settings that only one algorithm needs: under `for_algorithm`, by the algorithm's name.
    """
    path = experiment_path(name_or_path)
    return experiment_of_text(_text(path), settings, source=str(path))


def told_experiment(told: str, settings: Sequence[str], allowed: Collection[str] | None) -> Experiment:
    """Read what a server tells its clients: the text of an experiment, or the name of a shipped one.

    It is never taken for the path of a file: that would be one of the client's.
    """
    text = told if "\n" in told else _text(shipped_path(told))
    return experiment_of_text(text, settings, source=TOLD, allowed=allowed)


def experiment_of_text(
    text: str, settings: Sequence[str] = (), *, source: str = TOLD, allowed: Collection[str] | None = None
) -> Experiment:
    """Read the text of an experiment; of classes outside this repo it may name those that are `allowed`; None: any."""
    if sum(map(len, settings)) > LONGEST_TEXT:
        raise PublicError(f"{source}: settings of more than {LONGEST_TEXT} characters")
    mapping = _parse(text, source)
    own_settings = _checked_own_settings(mapping, source, allowed)
    keys = [_apply(mapping, setting) for setting in settings]
    for key, value in own_settings.get(_algorithm_name(mapping), {}).items():
        if key not in keys:
            _put(mapping, key, value, source)
    experiment = read(Experiment, mapping, Source(source, frozenset(keys), allowed))
    kind = experiment.schedule.kind or experiment.algorithm.default_schedule
    return replace(experiment, schedule=replace(experiment.schedule, kind=kind))


def unresolved(name_or_path: str, settings: Sequence[str]) -> dict[str, Any]:
    """Return what a file says, with settings in place, and nothing that an algorithm or a task would choose itself."""
    path = experiment_path(name_or_path)
    mapping = _parse(_text(path), str(path))
    for setting in settings:
        _apply(mapping, setting)
    return mapping


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def _parse(text: str, source: str) -> dict[str, Any]:
    mapping = read_yaml(text, source)
    if not isinstance(mapping, dict):
        raise PublicError(f"{source}: expected keys and values, such as 'rounds: 100'")
    return mapping


def _checked_own_settings(
    mapping: dict[str, Any], source: str, allowed: Collection[str] | None
) -> dict[str, dict[str, Any]]:
    """Take `for_algorithm` out of the mapping: settings that go with one algorithm only, all of them checked."""
    own_settings = mapping.pop("for_algorithm", {})
    if not isinstance(own_settings, dict) or not all(isinstance(part, dict) for part in own_settings.values()):
        raise PublicError(f"{source}: for_algorithm: expected a section of settings for each algorithm's name")
    if len(own_settings) > MOST_ALGORITHMS:
        raise PublicError(f"{source}: for_algorithm: more than {MOST_ALGORITHMS} algorithms")
    for name, part in own_settings.items():
        trial = copy.deepcopy(mapping)
        for key, value in {**part, "algorithm.name": name}.items():
            _put(trial, str(key), value, f"{source}: for_algorithm.{name}: {key}")
        read(Experiment, trial, Source(f"{source}: for_algorithm.{name}", allowed=allowed))
    return own_settings


def _algorithm_name(mapping: dict[str, Any]) -> str:
    section = mapping.get("algorithm")
    return str(section.get("name")) if isinstance(section, dict) else ""


def _apply(mapping: dict[str, Any], setting: str) -> str:
    """Put one `a.b=value` into the mapping and return its key."""
    key, separator, text = setting.partition("=")
    key = key.strip()
    if not separator or not key:
        raise PublicError(f"--set {setting}: expected key=value, such as algorithm.density=0.1")
    try:
        value = read_yaml(text, setting)
    except PublicError:
        value = text
    _put(mapping, key, value, f"--set {setting}")
    return key


def _put(mapping: dict[str, Any], key: str, value: object, origin: str) -> None:
    """Set one leaf of a nested mapping by its dotted key."""
    *sections, leaf = key.split(".")
    if len(sections) > DEEPEST:
        raise PublicError(f"{origin}: more than {DEEPEST} sections in each other")
    place = mapping
    for section in sections:
        inner = place.setdefault(section, {})
        if not isinstance(inner, dict):
            raise PublicError(f"{origin}: {section} is a value, not a section")
        place = inner
    if isinstance(value, Mapping) or isinstance(place.get(leaf), Mapping):
        raise PublicError(f"{origin}: only single values can be set, such as {key}.NAME=VALUE")
    place[leaf] = value
