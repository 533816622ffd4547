"""The programs as a user starts them: real processes, exit codes, files."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from client.__main__ import app as client_app
from common.errors import UserError
from common.experiment import plugins
from common.learning.task import Task
from common.program import start
from common.rounds.algorithm import Algorithm
from server.__main__ import app
from server.deploy.guard import Guard
from server.research.studies import names_of
from server.runs.run_folder import RunFolder
from tests.harness import small_data
from tests.harness.models import linear_model

RUNS = ("sparse", "dense")
NAMES = plugins.available(Algorithm.plugin_package)
FIELDS = {
    "round",
    "time",
    "local_steps",
    "clients",
    "clients_counted",
    "paper_bits_up",
    "density_up",
    "density_down",
    "control_sum_norm",
    "seconds",
    "metrics",
    "clients_missing",
    "payload_bytes_up",
    "payload_bytes_down",
    "message_bytes_up",
    "message_bytes_down",
    "traffic_beside_training",
    "waited_for",
    "seconds_by_phase",
}


SLOW_TO_IMPORT = {"torch", "flwr", "matplotlib", "grpc", "numpy"}


def program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program and let it write all that it says, and all that it imports, in one stream."""
    command = [sys.executable, "-X", "importtime", "-m", name, *arguments]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )


def imported_packages(said: str) -> set[str]:
    lines = [line for line in said.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def run_here(*arguments: str) -> None:
    """Run a command in this process: what a process of its own adds is shown once, below."""
    app(arguments, standalone_mode=False)


def rounds_in(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def simulate(*arguments: str, output: Path) -> list[dict[str, object]]:
    run_here("simulate", *arguments, "--output", str(output))
    return rounds_in(output)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    small_data.write_blogfeedback(folder)
    small_data.write_femnist(folder)
    small_data.write_cifar10(folder)
    return folder


def test_a_run_leaves_its_folder_and_repeats_from_it(tmp_path: Path) -> None:
    settings = ["--set", "rounds=6", "--set", "clients=3", "--set", "schedule.kind=coin"]
    finished = program("server", "simulate", "digits", *settings, "--output", str(tmp_path / "first"))
    assert finished.returncode == 0, finished.stdout
    assert finished.stdout.index("preparing to simulate digits\n") < finished.stdout.index(" torch\n")
    records = rounds_in(tmp_path / "first")
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert all(set(record) == FIELDS for record in records)
    assert (tmp_path / "first" / "experiment.yaml").read_text().startswith("# data: scikit-learn digits\n")
    model = linear_model(tmp_path / "first")
    assert model.shape == (650,)
    assert int(torch.count_nonzero(model)) <= 65
    repeated = simulate(str(tmp_path / "first" / "experiment.yaml"), output=tmp_path / "again")
    assert torch.equal(linear_model(tmp_path / "again"), model)
    assert [r["metrics"] for r in repeated] == [r["metrics"] for r in records]


def test_a_simulation_encodes_and_counts_unless_it_is_told_not_to(tmp_path: Path) -> None:
    settings = ["--set", "rounds=3", "--set", "clients=2"]
    counted = simulate("digits", *settings, output=tmp_path / "counted")
    faster = simulate("digits", *settings, "--set", "codec.encode_in_simulation=false", output=tmp_path / "faster")
    for one, other in zip(counted, faster, strict=True):
        assert one["paper_bits_up"] == other["paper_bits_up"]
        assert other["payload_bytes_up"] is None
        assert other["payload_bytes_down"] is None
        assert one["paper_bits_up"] == 32 * 65 * one["round"]  # type: ignore[operator]
        assert 2 * 2 * 65 // 8 < one["payload_bytes_up"] < 2 * 40 * 65 // 8  # type: ignore[operator]
        assert one["payload_bytes_down"] > 2 * 2 * 65 // 8  # type: ignore[operator]
        assert one["message_bytes_up"] is None
    assert not (tmp_path / "counted" / "clients.jsonl").exists()


@pytest.mark.parametrize("task", ["blogfeedback", "femnist", "cifar10"])
def test_every_shipped_experiment_runs_on_small_data(task: str, data: Path, tmp_path: Path) -> None:
    smaller = ["--set", "rounds=2", "--set", "clients=3", "--set", "schedule.period=2", "--data", str(data)]
    if task == "cifar10":
        smaller += ["--set", "task.width=4", "--set", "task.batch_size=4"]
    records = simulate(task, *smaller, output=tmp_path / "run")
    assert len(records) == 2
    assert records[-1]["metrics"]
    tensors = load_file(tmp_path / "run" / "model.safetensors")
    blueprint = RunFolder(tmp_path / "run").experiment().task.blueprint()
    assert blueprint
    blueprint.module.load_state_dict(tensors)  # all of them, and no others


def test_all_algorithms_compare_and_make_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "comparison"
    settings = ["--set", "rounds=4", "--set", "clients=3", "--reach", "0.1", "--reach", "0.99"]
    run_here("compare", "digits", *settings, "--output", str(output))
    said = capsys.readouterr().out
    assert (output / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "to 0.99" in said
    assert "(kB, as sent; bits: per kept value)" in said
    for name in NAMES:
        assert len((output / name / "rounds.jsonl").read_text().splitlines()) == 4
        assert yaml.safe_load((output / name / "experiment.yaml").read_text())["algorithm"]["name"] == name
        assert name in said


def test_a_method_that_diverges_does_not_end_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "comparison"
    settings = ["--set", "rounds=40", "--set", "algorithm.learning_rate=1e4", "--set", "schedule.period=8"]
    algorithms = ["sparse_proxskip_modified", "sparse_proxskip"]
    run_here("compare", "digits", *algorithms, *settings, "--paper-bits", "--output", str(output))
    said = capsys.readouterr().out
    assert "no longer finite" in said
    assert "(Mbit, 32 bit" in said
    assert (output / "comparison.png").exists()


def test_nothing_to_compare_is_said(tmp_path: Path) -> None:
    settings = ["--set", "rounds=40", "--set", "algorithm.learning_rate=1e30", "--set", "evaluate_every_rounds=40"]
    with pytest.raises(UserError, match="nothing to compare"):
        run_here("compare", "digits", "fedavg", *settings, "--output", str(tmp_path / "comparison"))


def test_a_comparison_that_would_write_over_a_run_is_refused_before_any_work(tmp_path: Path) -> None:
    settings = ["--set", "rounds=1", "--set", "clients=2"]
    simulate("digits", *settings, output=tmp_path / "comparison" / "proxskip")
    with pytest.raises(UserError, match="already holds a run"):
        run_here("compare", "digits", "fedavg", "proxskip", *settings, "--output", str(tmp_path / "comparison"))
    assert [path.name for path in (tmp_path / "comparison").iterdir()] == ["proxskip"]


def test_a_report_counts_what_was_sent_or_what_the_paper_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "rounds=3", "--set", "clients=2"]
    records = simulate("digits", *settings, output=tmp_path / "sparse")
    dense = simulate("digits", *settings, "--set", "algorithm.name=fedavg", output=tmp_path / "dense")
    sent_bits = sum(4.0 * float(str(record["payload_bytes_up"])) for record in records)  # of each of the two
    capsys.readouterr()
    for options, mark, upload in (
        ([], "(kB, as sent; bits: per kept value)", f"{sent_bits / 8e3:.1f}"),
        (["--paper-bits"], "(Mbit, 32 bit", f"{float(str(records[-1]['paper_bits_up'])) / 1e6:.3f}"),
    ):
        figure = tmp_path / "figure.png"
        run_here("report", str(tmp_path / "sparse"), str(tmp_path / "dense"), "--output", str(figure), *options)
        said = capsys.readouterr().out
        assert mark in said
        sparse_row, dense_row = (
            next(line for line in said.splitlines() if line.startswith(f"{name} ")) for name in RUNS
        )
        assert sparse_row.split()[1] == "0.1"
        assert upload in sparse_row.split()
        assert dense_row.split()[1] == "1"
        assert f"{dense[-1]['metrics']['test_accuracy']:.4f}" in dense_row  # type: ignore[index]
        assert "dense keeps all weights and ends at" in said
        assert figure.read_bytes().startswith(b"\x89PNG")
        figure.unlink()


def test_brackets_in_a_path_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "[/x] a[b]"
    simulate("digits", "--set", "rounds=1", output=output)
    assert f"weights (density 0.1), in {output}\n" in capsys.readouterr().out


def test_rounds_between_evaluations_have_no_metrics(tmp_path: Path) -> None:
    records = simulate("digits", "--set", "rounds=5", "--set", "evaluate_every_rounds=2", output=tmp_path / "run")
    assert [bool(record["metrics"]) for record in records] == [False, True, False, True, True]


def test_runs_are_numbered_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        run_here("simulate", "digits", "--set", "rounds=1")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["digits", "digits-2"]
    with pytest.raises(UserError, match="already holds a run"):
        run_here("simulate", "digits", "--set", "rounds=1", "--output", "runs/digits")


@pytest.mark.parametrize(
    ("name", "arguments", "code", "words"),
    [
        ("server", ["--help"], 0, "Accelerated sparse-to-sparse"),
        ("server", ["--version"], 0, "proxskip-server 0."),
        ("server", ["run", "--help"], 0, "a shipped experiment or a YAML file"),
        ("server", ["list"], 0, "femnist-accuracy"),
        ("server", ["doctor", "--help"], 0, "Check this machine before a run"),
        ("client", ["doctor", "--help"], 0, "Check this machine before it joins"),
        ("server", ["keys", "list", "--keys", "/nowhere"], 2, "holds no keys of a federation"),
        ("server", ["simulat"], 2, "Did you mean 'simulate'"),
        ("server", ["simulate", "digits", "--outptu", "x"], 2, "--output"),
        ("server", ["simulate", "digts"], 2, "the nearest is 'digits'"),
        ("server", ["compare", "digts"], 2, "the nearest is 'digits'"),
        ("server", ["tune", "femnist", "fedagv"], 2, "unknown algorithm 'fedagv'; the nearest is 'fedavg'"),
        ("server", ["run", "digits", "--insecure", "--track", "mlfow"], 2, "the nearest is 'mlflow'"),
        ("server", ["reproduce", "table-1"], 2, "there is no study 'table-1'"),
        ("server", ["run", "digits", "--keys", "/nowhere"], 2, "holds no keys of a federation"),
        ("server", ["local", "--resume", "/nowhere"], 2, "there is no run"),
        ("client", ["--help"], 0, "data that never leaves this machine"),
        ("client", ["--version"], 0, "proxskip-client 0."),
        ("client", ["join", "nowhere.join"], 2, "there is no join bundle"),
        ("client", ["keys", "request", "a b"], 2, "no name for a client"),
        ("server", ["keys", "sign", "nowhere.csr", "--keys", "/nowhere"], 2, "holds no keys of a federation"),
        ("client", ["join", "host:1", "--insecure", "--partition", "3/3"], 2, "numbered from 0 to 2"),
    ],
)
def test_who_asks_or_errs_does_not_wait_for_torch(name: str, arguments: list[str], code: int, words: str) -> None:
    finished = program(name, *arguments)
    assert finished.returncode == code, finished.stdout
    assert words in finished.stdout
    assert "Traceback" not in finished.stdout
    assert not imported_packages(finished.stdout) & SLOW_TO_IMPORT


@pytest.mark.parametrize("name", ["server", "client"])
def test_a_file_where_the_program_is_started_is_not_taken_for_a_library(name: str, tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit('a file of the user was run')")
    command = [sys.executable, "-m", name, "--version"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.startswith(f"proxskip-{name} ")


class _SeenError(Exception):
    """A command is about to be watched over."""


class _Watchful(Guard):
    def stand(self, say: object) -> None:
        raise _SeenError


@pytest.mark.parametrize(
    ("arguments", "is_guarded"),
    [
        (["simulate", "digits"], True),
        (["run", "digits", "--insecure"], True),
        (["local", "digits"], True),
        (["simulate", "digts"], False),
        (["run", "--help"], False),
        (["list"], False),
        (["keys", "list", "--keys", "/nowhere"], False),
        (["report", "/nowhere"], False),
        (["compare", "digits", "nonsense"], False),
        (["tune", "digits", "--periods", "nonsense"], False),
        (["reproduce", "nonsense"], False),
    ],
)
def test_only_runs_have_a_guard(arguments: list[str], is_guarded: bool) -> None:
    result = CliRunner().invoke(app, arguments, obj=_Watchful())
    assert isinstance(result.exception, _SeenError) == is_guarded


def test_help_explains_arguments_and_a_mistyped_command_gets_one_hint() -> None:
    """Some versions of click lose the one and double the other, with a typer that does not know them."""
    for one, command, words in (
        (app, "run", "a shipped experiment or a YAML file"),
        (app, "report", "folders of finished runs"),
        (client_app, "join", "join bundle (with --partitions a folder of them)"),
    ):
        result = CliRunner().invoke(one, [command, "--help"], env={"COLUMNS": "200"})
        assert words in result.output
    assert CliRunner().invoke(app, ["simulat"]).output.count("Did you mean") == 1


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    run_here("list")
    listed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert listed["algorithms"].split(", ") == NAMES
    assert listed["tasks"].split(", ") == plugins.available(Task.plugin_package)
    assert listed["studies"].split(", ") == names_of()
    assert {"digits", "blogfeedback", "femnist", "cifar10"} <= set(listed["experiments"].split(", "))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits", "--set", "algorithm.densty=0.1"], "algorithm.densty"),
        (["digits", "--set", "algorithm.density=-1"], "above 0 and at most 1"),
        (["digits", "--set", "algorithm.name=fedprox"], "'fedprox' is unknown"),
        (["digits", "--set", "clients=5000"], "clients = 5000"),
        (["digits", "--set", "algorithm.learning_rate=1e30"], "no longer finite"),
        (["digits", "--device", "cuda:9"], "--device cuda:9"),
        (["digits", "--device", "toaster"], "--device toaster"),
        (["digits", "--device", "meta"], "--device meta"),
        (["digits", "--output", "/dev/null/run"], "cannot write /dev/null/run"),
        (["digits", "--output", "x" * 300], "cannot write"),
        (["blogfeedback", "--data", "/nowhere"], "/nowhere does not exist"),
        (["blogfeedback", "--data", "EMPTY"], "BlogFeedback.zip is not in"),
        (["blogfeedback", "--data", "CORRUPT"], "is damaged"),
        (["nonsense"], "unknown experiment 'nonsense'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "keep_freed_memory", lambda: None)  # it is for a whole process
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "CORRUPT").mkdir()
    (tmp_path / "CORRUPT" / "BlogFeedback.zip").write_bytes(b"PK\x03\x04 but not really")
    with pytest.raises(SystemExit) as ended:
        start.run_program(partial(app, ["simulate", *arguments]))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert said.startswith("error: ")
    diverged = "learning_rate" in str(arguments)
    assert (tmp_path / "runs").exists() == diverged  # nothing else was begun


@pytest.mark.slow
def test_sparse_proxskip_needs_the_bits_of_table_2(real_data: Path, tmp_path: Path) -> None:
    records = simulate("blogfeedback", "--data", str(real_data), output=tmp_path / "run")
    for threshold, megabits in ((0.20, 0.08), (0.225, 0.10), (0.25, 0.15)):
        reached = [r["paper_bits_up"] for r in records if r["metrics"]["test_r2"] >= threshold]  # type: ignore[index]
        assert reached
        assert reached[0] <= megabits * 1e6, threshold  # type: ignore[operator]


@pytest.mark.slow
def test_a_whole_bfloat16_upload_is_smaller_than_the_papers_count_of_its_values(
    real_data: Path, tmp_path: Path
) -> None:
    settings = ["--set", "rounds=150", "--set", "evaluate_every_rounds=150", "--data", str(real_data)]
    exact = simulate("blogfeedback", *settings, output=tmp_path / "float32")
    rounded = simulate("blogfeedback", *settings, "--set", "codec.precision=bfloat16", output=tmp_path / "bfloat16")
    paper_bytes = 28 * 4
    for record in rounded:
        assert record["payload_bytes_up"] < 554 * paper_bytes  # type: ignore[operator]
    (score, other) = (records[-1]["metrics"]["test_r2"] for records in (exact, rounded))  # type: ignore[index]
    assert abs(score - other) < 0.005


@pytest.mark.slow
def test_the_papers_resnet18_trains_for_a_round(real_data: Path, tmp_path: Path) -> None:
    # The first round of a fixed period has one step; the second one's 64 steps of 10 clients are for a GPU.
    settings = ["--set", "rounds=1", "--set", "task.test_samples=500", "--set", "task.loss_samples=32"]
    (record,) = simulate("cifar10", *settings, "--data", str(real_data), output=tmp_path / "run")
    assert record["clients_counted"] == 10
    assert record["density_up"] == pytest.approx(0.1, rel=1e-3)
    assert record["paper_bits_up"] == pytest.approx(32 * 0.1 * 11_173_962, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_runs_on_blogfeedback(name: str, real_data: Path, tmp_path: Path) -> None:
    settings = ["--set", f"algorithm.name={name}", "--set", "rounds=3"]
    records = simulate("blogfeedback", *settings, "--data", str(real_data), output=tmp_path / "run")
    assert len(records) == 3
    assert all(record["clients_counted"] == 554 for record in records)
