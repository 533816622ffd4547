"""Run the studies: every run once, on all cores, kept on disk; then tables and figures."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.say import Say
from common.storage.disk import writing
from server.research.batch import on_all_cores
from server.research.code_version import code_digest
from server.research.outcome import Outcome, outcome_of
from server.research.studies import names_of
from server.research.study import Effort, Study, StudyRun
from server.research.study_figures import draw_study


def studies(name: str) -> dict[str, Study]:
    """Return the studies of a name: one, or all of them."""
    package = names_of.__module__
    return {one: importlib.import_module(f"{package}.{one.replace('-', '_')}").STUDY for one in names_of(name)}


def reproduce_studies(
    chosen: Mapping[str, Study],
    *,
    quick: bool,
    data: Path | None,
    folder: Path,
    say: Say,
    any_code: bool = False,
) -> None:
    """Do what the studies need, and write what they found; `any_code` takes runs of other versions of the code too."""
    efforts = {name: study.quick if quick else study.full for name, study in chosen.items()}
    needed = list(dict.fromkeys(run for name, study in chosen.items() for run in study.runs(efforts[name])))
    done: dict[StudyRun, Outcome] = {}
    for run, outcome in _run_all(needed, data, folder / "runs", say, any_code=any_code):
        done[run] = outcome
        say(f"{len(done)}/{len(needed)}: {run.experiment}: {' '.join(run.settings)}")
    for name, study in chosen.items():
        write(name, study, efforts[name], done, folder / name, quick=quick)
        say(f"\n{study.title}\n{folder / name / 'table.md'}")


def write(
    name: str, study: Study, effort: Effort, done: Mapping[StudyRun, Outcome], folder: Path, *, quick: bool
) -> None:
    """Write the table and the figures of one study."""
    curves = {run: done[run].samples for run in study.runs(effort)}
    data_names = " and ".join(sorted({done[run].data_name for run in curves}))
    table = study.table(curves, effort)
    command = f"proxskip-server reproduce {name}{' --quick' if quick else ''} --data DIR"
    seeds = max(cell.of for cells in table.rows.values() for cell in cells)
    length = f"{effort.length}, {seeds} seed{'s' if seeds > 1 else ''}"
    how = f"Data: {data_names}. `{command}`: {length}."
    remarks = "".join(f"\n{remark}\n" for remark in study.remarks)
    with writing(folder / "table.md") as path:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {study.title}\n\n{how}\n\n{table.markdown()}{remarks}", encoding="utf-8")
        content = {"study": name, "data": data_names, "command": command, "cells": table.records()}
        (folder / "table.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for figure in study.figures:
        drawn = {method.label: study.curves_of(method, figure.column, curves, effort) for method in study.methods}
        for ending in ("png", "svg"):
            draw_study(drawn, figure, title=f"{study.title}: {data_names}", path=folder / f"{figure.name}.{ending}")


def _run_all(
    runs: Sequence[StudyRun], data: Path | None, folder: Path, say: Say, *, any_code: bool
) -> Iterator[tuple[StudyRun, Outcome]]:
    """Run what is not on disk yet, or was made by other code; yield all."""
    ours = code_digest()
    kept = list(_kept(runs, folder))
    if others := sum(code != ours for _, code, _ in kept):
        what_now = "they are taken as they are" if any_code else "they are run again; --any-code takes them as they are"
        say(f"{others} of {len(kept)} runs in {folder} were made by another version of the code: {what_now}")
    found = {run: Outcome(**outcome) for run, code, outcome in kept if any_code or code == ours}
    yield from found.items()
    for run, outcome in on_all_cores(outcome_of, [run for run in runs if run not in found], data):
        keep(run, ours, outcome, folder)
        yield run, outcome


def _kept(runs: Sequence[StudyRun], folder: Path) -> Iterator[tuple[StudyRun, str | None, dict[str, Any]]]:
    """Yield the runs that are on disk, each with the digest of the code that made it, if that is known."""
    for run in runs:
        path = folder / f"{run.name}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            yield run, content.get("code"), content["outcome"]


def keep(run: StudyRun, code: str, outcome: Outcome, folder: Path) -> None:
    """Write what a run gave, and the digest of the code that made it."""
    content = {"experiment": run.experiment, "settings": run.settings, "code": code, "outcome": asdict(outcome)}
    with writing(folder / f"{run.name}.json") as path:
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")  # a run that is killed while it writes leaves no half of a file
        draft.write_text(json.dumps(content) + "\n", encoding="utf-8")
        draft.replace(path)
