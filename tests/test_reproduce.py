"""Studies of the paper's results: they fit together, and become tables and figures."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import UserError
from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from server.research.code_version import code_digest
from server.research.outcome import Outcome
from server.research.reproduce import keep, reproduce_studies, studies
from server.research.spaces import OPTIONS, Span
from server.research.statistics import mean_and_error
from server.research.studies import names_of
from server.research.studies.shared.rivals import RIVALS, rivals_in_part, rivals_on
from server.research.study import (
    Cell,
    Effort,
    Panel,
    Study,
    StudyFigure,
    StudyRun,
    Table,
    TableColumn,
    cost_to_reach,
    final,
    method,
)
from server.research.study_kinds import NEVER, CostStudy, CourseStudy, EndStudy, Quantity
from server.research.tuning import Search, best_of, search, write_tuned
from server.simulation.simulation import Simulation
from tests.harness.processes import proxskip_server, wait_until
from tests.harness.small_data import write_femnist

NAMES = names_of()
SHORT = Effort(local_steps=12, seeds=2, evaluations=4)
SMALL = ("clients=3", "task.validation_writers=1")
METHODS = (
    method("sparse_proxskip", "schedule.period=3", *SMALL),
    method("server_pruning", "schedule.period=3", *SMALL),
    method("fediht", *SMALL, label="fediht, some of the clients", participation=0.4),
)


def test_every_table_of_the_paper_has_a_study() -> None:
    wanted = {"blogfeedback-accuracy", "blogfeedback-communication", "femnist-accuracy", "femnist-communication"}
    beside = {"control-sum", "cifar10", "participation", "uploads", "uploads-network", "femnist-fewest-bits", "arena"}
    beside |= {"twenty-clients", "five-hundred-clients"}
    assert wanted | beside == set(NAMES)
    with pytest.raises(
        UserError, match=r"no study 'table-1'; the nearest is '.*'; known: arena, blogfeedback-accuracy"
    ):
        studies("table-1")


@pytest.mark.parametrize("name", NAMES)
def test_a_study_can_be_run_and_the_paper_fits_its_rows(name: str) -> None:
    study = studies(name)[name]
    labels = [method.label for method in study.methods]
    assert len(set(labels)) == len(labels)
    papers = [quantity.paper or {} for quantity in getattr(study, "quantities", [])] or [getattr(study, "paper", {})]
    columns = len(getattr(study, "levels", study.experiments))
    for paper in papers:
        assert set(paper) <= set(labels)
        assert all(len(row) <= columns for row in paper.values())  # we may have columns that it has not
    for effort in (study.quick, study.full):
        runs = study.runs(effort)
        assert len({run.name for run in runs}) == len(runs)
        assert all(run.load().rounds >= 1 for run in runs)
    assert study.quick.local_steps < study.full.local_steps
    assert all(figure.column in study.experiments for figure in study.figures)


def test_bytes_are_counted_by_some_of_the_uploads(tmp_path: Path) -> None:
    experiment = load_experiment("digits", ["schedule.period=2"])
    problem = experiment.load(DataFolder.choose(tmp_path), torch.device("cpu"))
    every, third = (Simulation(experiment, problem, torch.device("cpu")) for _ in range(2))
    third.encodes_every = 3
    all_bytes, some_bytes = (simulation.step().payload_bytes_up for simulation in (every, third))
    assert all_bytes
    assert some_bytes
    assert some_bytes / 4 == pytest.approx(all_bytes / 10, rel=0.05)  # clients 0, 3, 6 and 9
    assert every.step().paper_bits_up == third.step().paper_bits_up


def test_methods_that_would_repeat_themselves_run_once() -> None:
    study = studies("blogfeedback-accuracy")["blogfeedback-accuracy"]
    by_label = {one.label: one for one in study.methods}
    experiment = study.experiments["90 %"]
    assert len(study.runs_of(by_label["sparse_proxskip"], experiment, study.full)) == 1
    assert len(study.runs_of(by_label["final_topk"], experiment, study.full)) == study.full.seeds  # flips coins


@pytest.mark.slow
def test_rivals_whose_settings_were_searched_are_rows_of_a_study(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    assert not rivals_on("femnist")
    what = Search(
        experiment="femnist",
        settings=SMALL,
        algorithms=RIVALS,
        learning_rates=Span(0.05, 0.5),
        periods=Span(2, 4),
        options=OPTIONS,
        groups=1,
        local_steps=4,
        seed=0,
    )
    trials = list(search(what, tmp_path, tmp_path / "tuning"))
    tuned = str(write_tuned(what, {name: best_of(trials, name) for name in RIVALS}, [], tmp_path / "tuning"))
    study = CourseStudy(
        title="rivals",
        experiment=tuned,
        methods=(*rivals_on(tuned), *rivals_in_part(tuned, [("a third", 0.34)])),
        full=Effort(local_steps=12, seeds=1, evaluations=4),
        quick=Effort(local_steps=12, seeds=1, evaluations=4),
        depends_on_seed=True,
        quantities=[Quantity("control_relative", "sum", 9)],
        panels=[Panel("train_loss", "loss", "round", logarithmic=True)],
    )
    said: list[str] = []
    reproduce_studies({"rivals": study}, quick=True, data=tmp_path, folder=tmp_path / "out", say=said.append)
    cells = json.loads((tmp_path / "out" / "rivals" / "table.json").read_text())["cells"]
    sums = {cell["method"]: cell["mean"] for cell in cells}
    assert sums.keys() == {*RIVALS, *(f"{name}, a third" for name in RIVALS)}
    assert max(sums.values()) < 1e-5


def small_studies() -> dict[str, Study]:
    shared = {"methods": METHODS, "full": SHORT, "quick": SHORT, "depends_on_seed": True}
    panels = [Panel("test_accuracy", "accuracy", lowest=0.0), Panel("train_loss", "loss", "round", logarithmic=True)]
    accuracy = Quantity("test_accuracy", "accuracy, %", 1, 100, {"sparse_proxskip": (86.7,)})
    return {
        "end": EndStudy(
            title="end",
            by_sparsity={"90 %": "femnist"},
            quantities=[accuracy],
            drawn=[StudyFigure("drawn", "90 %", panels)],
            **shared,  # type: ignore[arg-type]
        ),
        "cost": CostStudy(
            title="cost",
            experiment="femnist",
            metric="test_accuracy",
            levels={"0 %": 0.0, "200 %": 2.0},
            paper={"sparse_proxskip": (0.1, NEVER)},
            lowest=0.0,
            **shared,  # type: ignore[arg-type]
        ),
        "course": CourseStudy(
            title="course",
            experiment="femnist",
            quantities=[accuracy, Quantity("control_relative", "sum", 9)],
            panels=panels,
            **shared,  # type: ignore[arg-type]
        ),
    }


def test_studies_share_their_runs_and_write_tables_and_figures(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    said: list[str] = []
    folder = tmp_path / "results"
    reproduce_studies(small_studies(), quick=True, data=tmp_path, folder=folder, say=said.append)
    assert sum(line[0].isdigit() for line in said) == len(METHODS) * SHORT.seeds  # all three studies need the same
    end, cost, course = ((folder / name / "table.md").read_text() for name in ("end", "cost", "course"))
    assert "| sparse_proxskip | " in end
    assert " ± " in end
    assert " (86.7) |" in end
    assert " | not reached (not reached) |" in cost
    assert "Data: MNIST by writer. `proxskip-server reproduce course --quick" in course
    cells = json.loads((folder / "course" / "table.json").read_text())["cells"]
    sums = {cell["method"]: cell["mean"] for cell in cells if cell["column"] == "sum"}
    assert sums["sparse_proxskip"] < 1e-6
    assert sums["server_pruning"] > 1e-3
    assert sums["fediht, some of the clients"] is None  # it has no control variates
    drawings = {path.name for path in folder.glob("*/*.???") if path.suffix in (".png", ".svg")}
    assert drawings == {"drawn.png", "drawn.svg", "curves.png", "curves.svg"}

    old = {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}
    reproduce_studies(small_studies(), quick=True, data=tmp_path, folder=folder, say=said.append)
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()} == old  # nothing is run twice


@pytest.mark.slow
def test_runs_of_another_version_of_the_code_are_made_again(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    folder, said = tmp_path / "results", list[str]()
    study = replace(small_studies()["course"], quick=replace(SHORT, seeds=1))

    def again(*, any_code: bool = False) -> None:
        said.clear()
        reproduce_studies(
            {"course": study}, quick=True, data=tmp_path, folder=folder, say=said.append, any_code=any_code
        )

    def made() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in sorted((folder / "runs").iterdir())}

    again()
    first, second, third = made()
    for path, code in ((first, {"code": "of yesterday"}), (second, {})):
        content = {key: value for key, value in json.loads(path.read_text()).items() if key != "code"}
        path.write_text(json.dumps(content | code))
    before = made()
    again(any_code=True)
    assert said[0].startswith(
        f"2 of 3 runs in {folder / 'runs'} were made by another version of the code: they are taken"
    )
    assert made() == before
    again()
    assert said[0].endswith("another version of the code: they are run again; --any-code takes them as they are")
    assert [made()[path] == before[path] for path in (first, second, third)] == [False, False, True]
    again()
    assert "version" not in said[0]


def command(folder: Path) -> list[str]:
    return ["reproduce", "control-sum", "--quick", "--data", str(folder), "--output", str(folder / "results")]


@pytest.mark.slow
def test_the_command_writes_a_study_from_runs_that_are_done(tmp_path: Path) -> None:
    study = studies("control-sum")["control-sum"]
    seen = {"round": 1.0, "bits": 32.0, "bytes": 8.0} | {panel.quantity: 0.5 for panel in study.figures[0].panels}
    runs = study.runs(study.quick)
    for run in runs:
        keep(run, code_digest(), Outcome("made up", [seen]), tmp_path / "results" / "runs")
    finished = proxskip_server(*command(tmp_path))
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines[: len(runs)]] == [f"{count}/4" for count in range(1, 5)]
    results = tmp_path / "results" / "control-sum"
    assert lines[-1] == str(results / "table.md")
    assert "| server_pruning | 50.0 | 0.5000 |" in (results / "table.md").read_text()
    assert {path.name for path in results.iterdir()} == {"table.md", "table.json", "curves.png", "curves.svg"}


def test_an_unknown_study_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    finished = proxskip_server("reproduce", "table-1", cwd=tmp_path)
    assert finished.returncode == 2
    assert finished.stderr.startswith("error: there is no study 'table-1'; the nearest is '")
    assert finished.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_interrupted_command_goes_on_with_the_runs_that_are_left(tmp_path: Path) -> None:
    write_femnist(tmp_path, writers=100, images_each=1)
    runs = tmp_path / "results" / "runs"
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([sys.executable, "-m", "server", *command(tmp_path)], stdout=log, stderr=log) as program,
    ):
        wait_until(lambda: any(runs.glob("*.json")), seconds=300)
        program.send_signal(signal.SIGINT)
        program.wait(60)
    assert "Traceback" not in (tmp_path / "log").read_text()
    done = {path: path.stat().st_mtime_ns for path in runs.glob("*.json")}
    finished = proxskip_server(*command(tmp_path))
    assert finished.returncode == 0, finished.stderr
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert len(list(runs.glob("*.json"))) == 4
    cells = json.loads((tmp_path / "results" / "control-sum" / "table.json").read_text())["cells"]
    sums = {cell["method"]: cell["mean"] for cell in cells if cell["column"] == "norm of the sum of h"}
    assert sums["sparse_proxskip"] < 1e-3 < 1 < sums["server_pruning"]


def test_another_setting_is_another_run() -> None:
    names = {
        StudyRun("femnist", (f"algorithm.name={name}", f"seed={seed}"), participation).name
        for name in ("fedavg", "fediht")
        for seed in (0, 1)
        for participation in (1.0, 0.5)
    }
    assert len(names) == 8


def test_a_mean_has_the_standard_error_of_its_seeds() -> None:
    mean, error = mean_and_error([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    assert mean.tolist() == [2.0, 5.0]
    assert error.tolist() == [pytest.approx(1 / math.sqrt(3)), 0.0]
    assert np.isnan(mean_and_error([[1.0, 5.0]])[1]).all()


def test_cells_say_how_sure_they_are() -> None:
    assert Cell([1.0, 2.0, 3.0], 3).text(2) == "2.00 ± 0.58"
    assert Cell([1.0], 1).text(1) == "1.0"
    assert Cell([1.0], 2).text(1) == "1.0 in 1 of 2 runs"
    assert Cell([1.0], 1, 0.25).text(1) == "1.0 (0.25)"
    assert Cell([], 2, NEVER).text(1) == "not reached (not reached)"


def test_each_metric_has_a_table_of_its_own() -> None:
    columns = [TableColumn("80 %", 1, "score"), TableColumn("90 %", 1, "score"), TableColumn("80 %", 0, "sent, kB")]
    table = Table(columns, {"m": [Cell([1.5], 1, 2.5), Cell([1.0], 1), Cell([7], 1)]})
    assert table.markdown() == (
        "**score**, the paper's in brackets\n\n"
        "| method | 80 % | 90 % |\n| --- | ---: | ---: |\n| m | 1.5 (2.5) | 1.0 |\n\n"
        "**sent, kB**\n\n"
        "| method | 80 % |\n| --- | ---: |\n| m | 7 |\n"
    )
    assert [record["column"] for record in table.records()] == ["score, 80 %", "score, 90 %", "sent, kB, 80 %"]


def test_a_curve_that_diverged_has_no_end_but_may_have_reached_a_level() -> None:
    curve = [{"round": 1.0, "bits": 10.0, "score": 0.5}, {"round": 2.0, "bits": 20.0}]
    assert math.isnan(final(curve, "score"))
    assert cost_to_reach(curve, "score", 0.4, "bits") == 10.0
    assert cost_to_reach(curve, "score", 0.6, "bits") is None
