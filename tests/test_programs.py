"""The programs as a user starts them: real processes, exit codes, files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from common.experiment import plugins
from common.rounds.algorithm import Algorithm
from tests.harness import small_data

NAMES = plugins.available(Algorithm.plugin_package)
FIELDS = {
    "round",
    "local_steps",
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
    "traffic_by_client",
    "memory_by_client",
    "seconds_by_phase",
}


def proxskip_server(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, check=False)


def simulate(*arguments: str, output: Path) -> list[dict[str, object]]:
    finished = proxskip_server("simulate", *arguments, "--output", str(output))
    assert finished.returncode == 0, finished.stderr
    return [json.loads(line) for line in (output / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    small_data.write_blogfeedback(folder)
    small_data.write_femnist(folder)
    small_data.write_cifar10(folder)
    return folder


def test_a_run_leaves_its_folder_and_repeats_from_it(tmp_path: Path) -> None:
    settings = ["--set", "rounds=6", "--set", "clients=3", "--set", "schedule.kind=coin"]
    records = simulate("digits", *settings, output=tmp_path / "first")
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert all(set(record) == FIELDS for record in records)
    assert (tmp_path / "first" / "experiment.yaml").read_text().startswith("# data: scikit-learn digits\n")
    model = load_file(tmp_path / "first" / "model.safetensors")["model"]
    assert model.shape == (650,)
    assert int(torch.count_nonzero(model)) <= 65
    repeated = simulate(str(tmp_path / "first" / "experiment.yaml"), output=tmp_path / "again")
    assert torch.equal(load_file(tmp_path / "again" / "model.safetensors")["model"], model)
    assert [r["metrics"] for r in repeated] == [r["metrics"] for r in records]


def test_a_simulation_encodes_and_counts_unless_it_is_told_not_to(tmp_path: Path) -> None:
    settings = ["--set", "rounds=3", "--set", "clients=2"]
    counted = simulate("digits", *settings, output=tmp_path / "counted")
    faster = simulate("digits", *settings, "--set", "codec.encode_in_simulation=false", output=tmp_path / "faster")
    for one, other in zip(counted, faster, strict=True):
        assert one["paper_bits_up"] == other["paper_bits_up"]
        assert other["payload_bytes_up"] is None
        assert other["payload_bytes_down"] is None
        clients = one["traffic_by_client"]
        assert isinstance(clients, dict)
        assert set(clients) == {"client-0", "client-1"}
        assert one["payload_bytes_up"] == sum(client["payload_bytes_up"] for client in clients.values())
        assert one["payload_bytes_down"] == sum(client["payload_bytes_down"] for client in clients.values())
        assert {client["paper_bits_up"] for client in clients.values()} == {32 * 65}
        assert {client["message_bytes_up"] for client in clients.values()} == {None}


@pytest.mark.parametrize("task", ["blogfeedback", "femnist", "cifar10"])
def test_every_shipped_experiment_runs_on_small_data(task: str, data: Path, tmp_path: Path) -> None:
    smaller = ["--set", "rounds=2", "--set", "clients=3", "--set", "schedule.period=2", "--data", str(data)]
    if task == "cifar10":
        smaller += ["--set", "task.width=4", "--set", "task.batch_size=4"]
    records = simulate(task, *smaller, output=tmp_path / "run")
    assert len(records) == 2
    assert records[-1]["metrics"]
    tensors = load_file(tmp_path / "run" / "model.safetensors")
    assert list(tensors) == ["model"]
    assert tensors["model"].dim() == 1
    assert (tmp_path / "run" / "buffers.safetensors").exists() == (task == "cifar10")


def test_all_algorithms_compare_and_make_a_figure(tmp_path: Path) -> None:
    output = tmp_path / "comparison"
    settings = ["--set", "rounds=4", "--set", "clients=3", "--reach", "0.1", "--reach", "0.99"]
    finished = proxskip_server("compare", "digits", *settings, "--output", str(output))
    assert finished.returncode == 0, finished.stderr
    assert (output / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "to 0.99" in finished.stdout
    for name in NAMES:
        assert len((output / name / "rounds.jsonl").read_text().splitlines()) == 4
        assert yaml.safe_load((output / name / "experiment.yaml").read_text())["algorithm"]["name"] == name
        assert name in finished.stdout


def test_a_method_that_diverges_does_not_end_the_comparison(tmp_path: Path) -> None:
    output = tmp_path / "comparison"
    settings = ["--set", "rounds=40", "--set", "algorithm.learning_rate=1e4", "--set", "schedule.period=8"]
    algorithms = ["sparse_proxskip_modified", "sparse_proxskip"]
    finished = proxskip_server("compare", "digits", *algorithms, *settings, "--output", str(output))
    assert finished.returncode == 0, finished.stderr
    assert "no longer finite" in finished.stdout
    assert (output / "comparison.png").exists()


def test_nothing_to_compare_is_said(tmp_path: Path) -> None:
    settings = ["--set", "rounds=40", "--set", "algorithm.learning_rate=1e30", "--set", "evaluate_every_rounds=40"]
    finished = proxskip_server("compare", "digits", "fedavg", *settings, "--output", str(tmp_path / "comparison"))
    assert finished.returncode == 2
    assert "nothing to compare" in finished.stderr


def test_brackets_in_a_path_are_no_markup(tmp_path: Path) -> None:
    output = tmp_path / "[/x] a[b]"
    finished = proxskip_server("simulate", "digits", "--set", "rounds=1", "--output", str(output))
    assert finished.returncode == 0, finished.stderr
    assert str(output) in finished.stdout


def test_rounds_between_evaluations_have_no_metrics(tmp_path: Path) -> None:
    records = simulate("digits", "--set", "rounds=5", "--set", "evaluate_every_rounds=2", output=tmp_path / "run")
    assert [bool(record["metrics"]) for record in records] == [False, True, False, True, True]


def test_runs_are_numbered_not_overwritten(tmp_path: Path) -> None:
    for _ in range(2):
        assert proxskip_server("simulate", "digits", "--set", "rounds=1", cwd=tmp_path).returncode == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["digits", "digits-2"]
    again = proxskip_server("simulate", "digits", "--set", "rounds=1", "--output", "runs/digits", cwd=tmp_path)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr


def test_list_names_everything() -> None:
    finished = proxskip_server("list")
    assert finished.returncode == 0
    assert all(name in finished.stdout for name in [*NAMES, "digits", "blogfeedback", "femnist", "cifar10"])


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
def test_a_mistake_is_one_line_and_exit_code_two(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "CORRUPT").mkdir()
    (tmp_path / "CORRUPT" / "BlogFeedback.zip").write_bytes(b"PK\x03\x04 but not really")
    finished = proxskip_server("simulate", *arguments, cwd=tmp_path)
    assert finished.returncode == 2, finished.stderr
    assert words in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert finished.stderr.startswith("error: ")
    assert "Traceback" not in finished.stdout + finished.stderr


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
        traffic = record["traffic_by_client"]
        assert isinstance(traffic, dict)
        assert max(client["payload_bytes_up"] for client in traffic.values()) < paper_bytes
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
