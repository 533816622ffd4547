"""Run the studies: every run once, on all cores, kept on disk; then tables and figures."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import DivergedError, UserError
from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.storage.disk import writing
from server.research.batch import CPU, on_all_cores, problem_of
from server.research.study import Effort, Sample, Study, StudyRun
from server.research.study_figures import draw_study
from server.simulation.simulation import Simulation

PACKAGE = "server.research.studies"
ALL = "all"
MEASURED_EVERY = 5  # evaluations: encoding the uploads of all clients takes as long as some local steps


@dataclass(frozen=True)
class Outcome:
    """What a run gave, and on what data: there are stand-ins, each named for what it is."""

    data_name: str
    samples: list[Sample]


def studies(name: str) -> dict[str, Study]:
    """Return the studies of a name: one, or all of them."""
    known = [found.replace("_", "-") for found in plugins.available(PACKAGE)]
    if name != ALL and name not in known:
        raise UserError(f"there is no study {name!r}; known: {', '.join(known)}, or {ALL}")
    chosen = known if name == ALL else [name]
    return {one: importlib.import_module(f"{PACKAGE}.{one.replace('-', '_')}").STUDY for one in chosen}


def reproduce(
    chosen: Mapping[str, Study], *, quick: bool, data: Path | None, folder: Path, say: Callable[[str], None]
) -> None:
    """Do what the studies need, and write what they found."""
    efforts = {name: study.quick if quick else study.full for name, study in chosen.items()}
    needed = list(dict.fromkeys(run for name, study in chosen.items() for run in study.runs(efforts[name])))
    done: dict[StudyRun, Outcome] = {}
    for run, outcome in _run_all(needed, data, folder / "runs"):
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
    length = f"{effort.local_steps} local steps a run, {seeds} seed{'s' if seeds > 1 else ''}"
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


def _run_all(runs: Sequence[StudyRun], data: Path | None, folder: Path) -> Iterator[tuple[StudyRun, Outcome]]:
    """Run what is not on disk yet; yield all."""
    left = []
    for run in runs:
        path = folder / f"{run.name}.json"
        if path.exists():
            yield run, Outcome(**json.loads(path.read_text(encoding="utf-8"))["outcome"])
        else:
            left.append(run)
    for run, outcome in on_all_cores(_simulate, left, data):
        content = {"experiment": run.experiment, "settings": run.settings, "outcome": asdict(outcome)}
        with writing(folder / f"{run.name}.json") as path:
            folder.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".new")  # a run that is killed while it writes leaves no half of a file
            draft.write_text(json.dumps(content) + "\n", encoding="utf-8")
            draft.replace(path)
        yield run, outcome


def _simulate(run: StudyRun, data: Path | None) -> Outcome:
    """Run one simulation; that a method diverges is a result: the curve ends there."""
    experiment = run.load()
    problem = problem_of(experiment, data)
    simulation = Simulation(experiment, problem, CPU, run.participation)
    samples: list[Sample] = []
    try:
        samples.extend(_samples(simulation, experiment))
    except DivergedError:
        samples.append({"round": simulation.rounds_done, "bits": simulation.bits_up})
    return Outcome(problem.data_name, samples)


def _samples(simulation: Simulation, experiment: Experiment) -> Iterator[Sample]:
    """Run, and give what is seen after the rounds that are evaluated."""
    sent_bytes, upload_bytes, since, seen = 0.0, 0.0, 0, 0
    while simulation.rounds_done < experiment.rounds:
        evaluated = experiment.is_evaluated(simulation.rounds_done + 1)
        # What the codec makes of an upload is measured now and then, and holds for the rounds around.
        simulation.encode_as = "bfloat16" if evaluated and seen % MEASURED_EVERY == 0 else None
        record = simulation.step()
        since += 1
        if evaluated:
            if record.payload_bytes_up is not None:
                upload_bytes = record.payload_bytes_up / simulation.problem.clients
            sent_bytes += since * upload_bytes
            since, seen = 0, seen + 1
            counted = {"round": float(record.round), "bits": record.paper_bits_up, "bytes": sent_bytes}
            relative = {} if record.control_sum_norm is None else {"control_relative": record.control_sum_norm}
            yield counted | record.metrics | simulation.norms() | relative
