"""What a reader may type in, out of README and docs: it is run, or the page says what it needs or takes.

A comment that begins with "needs" or "takes" keeps a command from being run here: behind the command, or on a line of
its own for all commands under it in the same block.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import pytest
from typer.main import get_command

from common.experiment.shipped import shipped_path
from server.deploy.local_clients import leaving
from server.runs.run_folder import RunFolder
from tests.harness.cli_reference import PROGRAMS
from tests.harness.pages import (
    FENCE,
    INLINE_COMMAND,
    PAGES,
    REPOSITORY,
    Command,
    commands_of,
    inline_commands_of,
    rows_of,
)
from tests.harness.processes import free_port

KEYS = ("keys init", "keys add", "keys sign", "keys list", "keys request")
QUICK = ("list", "simulate", "compare", "report", "predict", "export", *KEYS)
SLOW = ("local",)
ALSO_RUN = ("grep",)
SHORT = dict.fromkeys(("simulate", "compare", "local"), ("--set", "rounds=2"))  # a test has seen enough then


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def program_of(command: Command) -> str:
    return next((name for name in PROGRAMS if command.words[0].endswith(name)), "")


def resolved(command: Command) -> tuple[click.Command, click.Context, list[str]]:
    """Return which command of a program a line calls, and with what."""
    words = command.words
    found: click.Command = get_command(PROGRAMS[program_of(command)])
    context, rest = click.Context(found, info_name=program_of(command)), words[1:]
    while isinstance(found, click.Group) and rest:
        inner = found.get_command(context, rest[0])
        assert inner is not None, f"{command}: there is no {rest[0]}"
        context = click.Context(inner, parent=context, info_name=rest[0])
        found, rest = inner, rest[1:]
    return found, context, rest


def subcommand(command: Command) -> str:
    return resolved(command)[1].command_path.partition(" ")[2]


BLOCKS = [command for page in PAGES for command in commands_of(page)]
OURS = [command for command in BLOCKS if program_of(command)]
INLINE = list(dict.fromkeys(command for page in PAGES for command in inline_commands_of(page)))


@pytest.mark.parametrize("command", OURS, ids=str)
def test_every_command_is_one_that_the_program_takes(command: Command) -> None:
    found, context, rest = resolved(command)
    assert context.parent is not None
    found.make_context(context.info_name, rest, parent=context.parent)


@pytest.mark.parametrize("command", [one for one in INLINE if program_of(one)], ids=str)
def test_every_option_in_a_sentence_exists(command: Command) -> None:
    found, context, rest = resolved(command)
    known = {option for one in found.get_params(context) for option in one.opts}
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known


def test_every_target_and_module_exists() -> None:
    lines = {command.text for command in (*BLOCKS, *INLINE)}
    targets = {line.split()[1] for line in lines if line.startswith("make ")}
    assert targets
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert targets <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    modules = {line.split()[2] for line in lines if line.startswith("python -m ")}
    assert modules
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []


def is_run(command: Command) -> bool:
    if not program_of(command):
        return command.words[0] in ALSO_RUN
    return subcommand(command) in (*QUICK, *SLOW)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_not_run_says_what_it_needs_or_takes(page: Path) -> None:
    unmarked = [str(command) for command in commands_of(page) if not command.is_marked and not is_run(command)]
    assert unmarked == [], 'say so in a comment: "# needs ..." or "# takes ..."'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make what commands look at: a run of digits, and one of clinics with all that belongs to it."""
    folder = tmp_path_factory.mktemp("run")
    simulate = partial(call, "proxskip-server", "simulate")
    simulate("digits", "--set", "rounds=2", "--output", str(folder / "runs/digits"))
    examples = FENCE.findall((REPOSITORY / "docs/your-data.md").read_text(encoding="utf-8"))
    schema = folder / "clinics.yaml"
    schema.write_text(next(block for _, block in examples if "name: clinics" in block))
    tables = folder / "folder-of-all-clients"
    tables.mkdir()
    for clinic in "abc":
        rows = [f"{20 + row},{100 + row},{('no', 'yes', 'former')[row % 3]},{3 * row}\n" for row in range(20)]
        (tables / f"clinic-{clinic}.csv").write_text("age,blood_pressure,smoker,cost\n" + "".join(rows))
    shutil.copy(tables / "clinic-a.csv", folder / "new.csv")
    simulate(str(schema), "--data", str(tables), "--set", "rounds=2", "--output", str(folder / "runs/clinics"))
    return folder


@pytest.fixture
def desk(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with what a reader of the pages has by then: two runs, files of their own, keys asked for."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    shutil.copytree(tmp_path / "runs/digits", tmp_path / "runs/digits-2")
    shutil.copy(shipped_path("digits"), tmp_path / "my_experiment.yaml")
    (tmp_path / "DIR").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(program: str, *arguments: str) -> None:
    get_command(PROGRAMS[program])(args=list(arguments), standalone_mode=False)


def run_all(page: Path, kinds: tuple[str, ...]) -> None:
    """Run the commands of a page, in its order, in the folder where we are."""
    for command in commands_of(page):
        if command.is_marked or not is_run(command):
            continue
        if not program_of(command):
            subprocess.run(command.words, check=True)
        elif subcommand(command) in kinds:
            call(program_of(command), *command.words[1:], *SHORT.get(subcommand(command), ()))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
@pytest.mark.usefixtures("desk")
def test_what_a_reader_types_in_works(page: Path) -> None:
    run_all(page, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
@pytest.mark.usefixtures("desk")
def test_what_a_reader_types_in_works_with_processes(page: Path) -> None:
    run_all(page, SLOW)


@pytest.mark.slow
def test_three_machines_of_the_page_on_deployment_make_a_federation(tmp_path: Path) -> None:
    """docs/deploy.md, its first page, with this machine's address in place of theirs."""
    commands = [one for one in commands_of(REPOSITORY / "docs/deploy.md") if program_of(one)]
    init, add, run, *joins = (one.text.replace("192.168.0.10", "127.0.0.1") for one in commands[:6])
    at_once = partial(subprocess.run, cwd=tmp_path, check=True, timeout=60)
    at_once(as_module(f"{init} --port {free_port()}"))
    at_once(as_module(add))
    for bundle in (tmp_path / "keys/bundles").iterdir():
        bundle.rename(tmp_path / bundle.name)
    with ExitStack() as stack:
        for join in joins:
            process = subprocess.Popen(as_module(join), cwd=tmp_path)
            stack.enter_context(leaving(process, 20))
        at_once(as_module(f"{run} --set rounds=3"))
    assert RunFolder(tmp_path / "runs/digits").rounds()[-1].clients_counted == 3


def as_module(command: str) -> list[str]:
    """Return a command with the program of this checkout, wherever it is installed."""
    program, *arguments = shlex.split(command)
    return [sys.executable, "-m", program.removeprefix("proxskip-"), *arguments]


def test_every_claim_has_a_number_and_a_command() -> None:
    rows = list(rows_of(REPOSITORY / "docs/claims.md", "claim", "measured", "command"))
    assert len(rows) > 100
    for _, (claim, measured, command) in rows:
        assert claim
        assert measured
        assert INLINE_COMMAND.search(command), claim
