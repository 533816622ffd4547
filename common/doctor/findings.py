"""What checks find, whatever they check: a line each, for people or for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.errors import UserError
from common.messages.flower import APP_VERSION
from common.say import one_line

Level = Literal["ok", "warning", "problem"]
COLORS: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "red"}

_Subject = TypeVar("_Subject")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check has found, and how to mend it."""

    check: str = ""  # `examine` knows its name
    level: Level
    found: str
    remedy: str = ""


Check = Callable[[_Subject], Finding | None]  # None: there is nothing to check


def ok(found: str) -> Finding:
    """Say that all is as it should be."""
    return Finding(level="ok", found=found)


def warning(found: str, remedy: str) -> Finding:
    """Say that it works, but not as well as it could, or not for long."""
    return Finding(level="warning", found=found, remedy=remedy)


def problem(found: str, remedy: str) -> Finding:
    """Say that it does not work."""
    return Finding(level="problem", found=found, remedy=remedy)


def examine(subject: _Subject, checks: Iterable[Check[_Subject]]) -> list[Finding]:
    """Make all checks; one that cannot be made is a finding too."""
    findings = []
    for check in checks:
        found = _made(subject, check)
        if found is not None:
            name = check.__name__.replace("_", " ")
            findings.append(replace(found, check=name, found=one_line(found.found), remedy=one_line(found.remedy)))
    return findings


def _made(subject: _Subject, check: Check[_Subject]) -> Finding | None:
    try:
        return check(subject)
    except UserError as error:  # which says how to mend it
        return problem(str(error), "")
    except Exception as error:  # whatever a broken machine may raise
        return problem(f"this cannot be checked: {error!r}", "")


def tell(program: str, findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print what was found; a problem is exit code 1."""
    levels = Counter(one.level for one in findings)
    if as_json:
        document = {
            "program": program,
            "version": APP_VERSION,
            "problems": levels["problem"],
            "warnings": levels["warning"],
            "findings": [asdict(one) for one in findings],
        }
        typer.echo(json.dumps(document, indent=2))
    else:
        console = Console()
        console.print(_table(findings))
        console.print(_in_short(levels), highlight=False)
    if levels["problem"]:
        raise typer.Exit(1)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("check", "", "found", "how to fix"):
        table.add_column(name, no_wrap=name in ("check", ""), overflow="fold")  # all of a long path
    for one in findings:
        level = Text(one.level, style=COLORS[one.level])
        table.add_row(Text(one.check), level, Text(one.found), Text(one.remedy))
    return table


def _in_short(levels: Counter[Level]) -> str:
    found: list[Level] = [level for level in ("problem", "warning") if levels[level]]
    counts = [f"{levels[level]} {level}{'s' if levels[level] > 1 else ''}" for level in found]
    return ", ".join(counts) or "all is well"
