"""The reference cannot go stale: it is compared with the programs, the dataclasses and the records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from common.experiment import plugins
from common.experiment.config import describe
from common.experiment.experiment import Codec, Experiment
from common.experiment.plain_yaml import read_yaml
from common.experiment.shipped import shipped_path
from common.learning.network_task import NetworkTask
from common.learning.task import Task
from common.rounds.algorithm import Algorithm
from common.rounds.records import ClientRecord, RoundRecord
from common.rounds.schedule import Schedule
from server.runs import journal, run_folder, status
from tests.harness.cli_reference import cli_reference
from tests.harness.pages import FENCE, REPOSITORY, rows_of

REFERENCE = REPOSITORY / "docs/reference"
RESULTS = sorted((REPOSITORY / "docs/results").glob("*/table.md"))
KIND = re.compile(r'kind="([a-z -]+)"')


def test_the_commands_are_those_of_the_programs() -> None:
    assert (REFERENCE / "cli.md").read_text(encoding="utf-8") == cli_reference(), "say: make reference"


def default_of(field: Field[Any]) -> str:
    if field.default is MISSING and field.default_factory is MISSING:
        return "must be given"
    value: Any = field.default_factory() if field.default_factory is not MISSING else field.default
    as_yaml = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return f"`{as_yaml or repr(as_yaml)}`"


def options_of(kind: type, section: str) -> Iterator[tuple[str, str, str]]:
    """Yield what a dataclass says of its keys: how each is called in the file, what it takes, its default."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if not is_dataclass(hints[field.name]):
            yield f"`{section}{field.name}`", describe(hints[field.name]), default_of(field)


def options_of_task(name: str) -> set[tuple[str, str, str]]:
    """Return the options of a task, without those that all networks have."""
    task = plugins.find(Task.plugin_package, name, Task)
    shared = set(options_of(NetworkTask, "task.")) if issubclass(task, NetworkTask) else set()
    return set(options_of(task, "task.")) - shared


def all_options() -> dict[str, set[tuple[str, str, str]]]:
    """Return the options of every section, by the heading under which the page has them."""
    algorithms = plugins.available(Algorithm.plugin_package)
    found = [plugins.find(Algorithm.plugin_package, name, Algorithm) for name in algorithms]
    return {
        "Run": set(options_of(Experiment, "")),
        "Schedule": set(options_of(Schedule, "schedule.")),
        "Codec": set(options_of(Codec, "codec.")),
        "Algorithm": {option for kind in found for option in options_of(kind, "algorithm.")},
        "Networks": set(options_of(NetworkTask, "task.")),
        **{name: options_of_task(name) for name in plugins.available(Task.plugin_package)},
    }


def test_the_keys_of_an_experiment_are_those_of_the_dataclasses() -> None:
    page: dict[str, set[tuple[str, str, str]]] = {}
    for heading, (key, takes, default, meaning) in rows_of(
        REFERENCE / "experiment.md", "key", "takes", "default", "what it says"
    ):
        assert meaning
        page.setdefault(heading, set()).add((key, takes, default))
    assert page == all_options()


def test_the_algorithms_are_those_there_are_with_their_schedules() -> None:
    header = ("name", "local step", "upload", "server", "control variate", "schedule")
    page = {
        re.sub(r"[^a-z0-9_]", "", cells[0]): cells[-1] for _, cells in rows_of(REFERENCE / "experiment.md", *header)
    }
    names = plugins.available(Algorithm.plugin_package)
    found = {name: plugins.find(Algorithm.plugin_package, name, Algorithm) for name in names}
    assert page == {name: kind.default_schedule for name, kind in found.items()}


def test_the_example_is_the_shipped_one() -> None:
    example = next(
        text for language, text in FENCE.findall((REFERENCE / "experiment.md").read_text()) if language == "yaml"
    )
    assert read_yaml(example, "the page") == read_yaml(shipped_path("digits").read_text(), "the file")


def words_under(heading: str, *header: str) -> set[str]:
    """Return the names in the first column of the tables under a heading of run-folder.md."""
    rows = [cells for found, cells in rows_of(REFERENCE / "run-folder.md", *header) if found == heading]
    return {word for cells in rows for word in re.findall(r"`([^`]+)`", cells[0])}


def test_every_file_field_and_kind_of_a_run_is_described() -> None:
    files = {run_folder.EXPERIMENT, run_folder.ROUNDS, run_folder.CLIENTS, run_folder.EVENTS, run_folder.MODEL}
    page = words_under("The run folder", "file", "what it is")
    assert files | {run_folder.CARD, journal.FILE, status.FILE, run_folder.REPORT} <= page
    fields_of_round = {field.name for field in fields(RoundRecord)} - {"by_client"}
    assert words_under("rounds.jsonl", "field", "what it is") == fields_of_round
    assert words_under("clients.jsonl", "field", "what it is") == {field.name for field in fields(ClientRecord)}
    code = [path for room in ("server", "strategies", "common") for path in (REPOSITORY / room).rglob("*.py")]
    said = {kind for path in code for kind in KIND.findall(path.read_text(encoding="utf-8"))} - {"stable"}  # of a sort
    assert said <= words_under("events.jsonl", "kind", "when")


@pytest.mark.parametrize("table", RESULTS, ids=lambda path: path.parent.name)
def test_the_page_of_results_has_the_tables_that_were_made(table: Path) -> None:
    made = table.read_text(encoding="utf-8").partition("\n")[2].strip()  # under its title
    assert made in (REPOSITORY / "docs/results.md").read_text(encoding="utf-8")
