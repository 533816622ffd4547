"""Clients with data of their own: what a schema allows, what is refused, and the whole way from files to metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
import yaml
from PIL import Image
from pyarrow import parquet
from safetensors.numpy import load_file

from client.app import _reason
from common.errors import UserError
from common.experiment.experiment import Experiment
from common.experiment.files import experiment_of_text, load_experiment
from common.learning.data import DataFolder
from common.learning.task import ClientFiles, Measured, mean_over_examples
from common.rounds.state import ServerState
from common.tasks.blogfeedback import FEATURES, BlogFeedback, read_archive
from common.tasks.tabular import Tabular
from server.runs.run_folder import RunFolder
from server.simulation.simulation import Simulation
from tests.harness import small_data

CPU = torch.device("cpu")
COLUMNS = {"age": "0..120", "smoker": "no | yes"}
PEOPLE = "age,smoker,cost\n60,yes,7\n30, no ,5\n"


def tabular(**options: object) -> Tabular:
    return Tabular(**{"target": "cost", "columns": COLUMNS, "test_fraction": 0.0, **options})  # type: ignore[arg-type]


def features_of(task: Tabular, text: str, folder: Path) -> tuple[list[list[float]], list[float]]:
    path = folder / "people.csv"
    path.write_text(text)
    rows = task._rows(ClientFiles("a", path), seed=0)
    return rows.train.tolist(), rows.train_targets.tolist()


def test_numbers_are_scaled_by_their_range_and_categories_are_one_feature_a_value(tmp_path: Path) -> None:
    features, targets = features_of(tabular(), PEOPLE, tmp_path)
    assert features == [[0.5, 0, 1, 1], [0.25, 1, 0, 1]]  # age, no, yes, the constant
    assert targets == [7, 5]


def test_scaling_by_the_largest_keeps_zeros_zero(tmp_path: Path) -> None:
    task = tabular(columns={"age": "-40..20", "smoker": "no | yes"}, scaling="largest")
    features, _ = features_of(task, "age,smoker,cost\n20,no,1\n0,no,1\n-40,no,1\n", tmp_path)
    assert [row[0] for row in features] == [0.5, 0, -1]


def test_missing_entries_are_refused_or_zero_or_zero_and_indicated(tmp_path: Path) -> None:
    text = "age,smoker,cost\n60,yes,7\n,NA,5\n"
    with pytest.raises(UserError, match=r"people.csv, row 2: age = '' is missing"):
        features_of(tabular(), text, tmp_path)
    assert features_of(tabular(missing="zero"), text, tmp_path)[0][1] == [0, 0, 0, 1]
    assert features_of(tabular(missing="indicate"), text, tmp_path)[0] == [[0.5, 0, 0, 1, 0, 1], [0, 1, 0, 0, 1, 1]]


def test_a_value_that_the_schema_names_is_not_missing_whatever_it_looks_like(tmp_path: Path) -> None:
    task = tabular(columns={"pain": "none | mild | ?"}, classes="none | ill", target="state")
    features, labels = features_of(task, "pain,state\nnone,ill\n?,none\n", tmp_path)
    assert features == [[1, 0, 0, 1], [0, 0, 1, 1]]
    assert labels == [1, 0]


def test_what_is_missing_in_a_parquet_category_is_missing(tmp_path: Path) -> None:
    smoker = pyarrow.array(["no", "yes", None]).dictionary_encode()
    columns = {"age": [1, 2, 3], "smoker": smoker, "cost": [1.0, 2.0, 3.0]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="row 3: smoker = '' is missing"):
        tabular().problem([ClientFiles("a", tmp_path / "x.parquet")], clients=1, seed=0, device=CPU)


def test_the_server_is_told_where_data_does_not_fit_and_not_what_it_is(tmp_path: Path) -> None:
    heard: list[str] = []
    with pytest.raises(UserError) as failure:
        features_of(tabular(), "age,smoker,cost\n60,Jane Doe,1\n", tmp_path)
    told = _reason(failure.value, heard.append)
    assert told == "its data does not fit the schema: column smoker, row 1; its log says more"
    assert "Jane Doe" in heard[0]
    assert "Jane" not in _reason(KeyError("Jane Doe"), heard.append)


def test_softmax_numbers_the_classes_as_declared(tmp_path: Path) -> None:
    task = tabular(classes="low | high", target="risk")
    assert features_of(task, "age,smoker,risk\n60,yes,high\n30,no,low\n", tmp_path)[1] == [1, 0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("age,smoker,cost\n60,yes,1\n130,no,2\n", r"row 2: age = '130' is beyond its range in the schema, 0..120"),
        ("age,smoker,cost\n60,yes,1\nold,no,2\n", "row 2: age = 'old' is not a number"),
        ("age,smoker,cost\n60,sometimes,1\n", r"row 1: smoker = 'sometimes' is none of its values .* no \| yes"),
        ("age,smoker,cost\n60,yes,inf\n", "row 1: cost = 'inf' is not a finite number"),
        ("age,smoker,cost\n60,yes,\n", "row 1: cost = '' is missing, and it is what is to be learned"),
        ("age,cost\n60,1\n", "has no column 'smoker', which the server's schema asks for; it has: age, cost"),
        ("age,smoker,cost\n60,yes,1\n60,yes\n", "line 3: 2 entries where the header has 3"),
        ("age,smoker,cost\n60,yes,1\n-nan,no,2\n", "row 2: age = '-nan' is missing"),
        ("age,smoker,age,cost\n60,yes,61,1\n", "has 2 columns 'age'"),
        ("age,smoker,cost\n", "has no rows"),
        ("", "has no column 'age'"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_column_and_row(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        features_of(tabular(), text, tmp_path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"columns": {}}, "columns is empty"),
        ({"columns": {"age": "120..0"}}, "the lower end comes first"),
        ({"columns": {"age": "young"}}, "expected a range LOW..HIGH, or different values"),
        ({"columns": {"age": "a | a"}}, "expected a range LOW..HIGH, or different values"),
        ({"columns": {"cost": "0..1"}}, "target = cost is among the columns"),
        ({"classes": "0..1"}, "classes: expected different values"),
    ],
)
def test_a_schema_that_says_nothing_is_refused(options: Mapping[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tabular(**options)


def test_yaml_that_turns_values_into_something_else_is_one_line() -> None:
    text = "name: x\nrounds: 1\nclients: 1\ntask:\n  name: tabular\n  target: y\n  columns: {a: yes}\n"
    with pytest.raises(UserError, match=r"task.columns = .*in quotes where YAML reads it otherwise"):
        experiment_of_text(text + "algorithm: {name: fedavg, learning_rate: 0.1}\n")


def test_a_file_of_another_kind_and_a_folder_without_tables_are_refused(tmp_path: Path) -> None:
    for name, reason in (("x.txt", "a table is one of"), ("nothing", "no such file, or no .csv")):
        path = tmp_path / name
        if path.suffix:
            path.write_text("?")
        with pytest.raises(UserError, match=reason):
            tabular().problem([ClientFiles("a", path)], clients=1, seed=0, device=CPU)
    for name in ("x.npz", "x.parquet"):
        (tmp_path / name).write_bytes(b"no table at all")
        with pytest.raises(UserError, match=f"{name} cannot be read"):
            tabular().problem([ClientFiles("a", tmp_path / name)], clients=1, seed=0, device=CPU)


def test_means_are_weighted_by_examples_and_who_has_none_counts_nothing() -> None:
    told = [Measured(1, {"a": 1.0}), Measured(3, {"a": 5.0}), Measured(0, {"a": 99.0})]
    assert mean_over_examples(told) == {"a": 4.0}
    assert mean_over_examples([Measured(0, {"a": 1.0})]) == {}


def test_r_squared_of_all_clients_is_made_of_their_means(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    ages, costs = [], []
    for client in range(3):
        age, cost = generator.integers(1, 99, 5 + client), generator.normal(client, 1, 5 + client)
        lines = [f"{one},no,{two}" for one, two in zip(age, cost, strict=True)]
        (tmp_path / f"{client}.csv").write_text("\n".join(["age,smoker,cost", *lines]))
        ages.append(age / 120)
        costs.append(cost)
    task = tabular(test_fraction=0.99)  # all rows but one of each client
    problem = task.load(DataFolder(tmp_path, may_download=False), clients=3, seed=0, device=CPU)
    state = ServerState(model=torch.tensor([2.0, 0.5, 0.0, 0.25]))
    rows = [task._rows(ClientFiles(str(client), tmp_path / f"{client}.csv"), 0) for client in range(3)]
    targets = np.concatenate([one.held_out_targets for one in rows])
    residual = np.concatenate([one.held_out for one in rows]) @ [2.0, 0.5, 0.0, 0.25] - targets
    expected = 1 - np.square(residual).sum() / np.square(targets - targets.mean()).sum()
    assert problem.evaluate(state)["test_r2"] == pytest.approx(expected)


def blogs_as_tables(archive: Path, folder: Path, clients: int) -> dict[str, str]:
    """Write the rows of each blog into a CSV of its own; return the schema."""
    train, _ = read_archive(archive)
    names = [f"x{index}" for index in range(FEATURES)]
    blog = np.unique(train[:, :50], axis=0, return_inverse=True)[1].ravel()
    folder.mkdir()
    for client in range(clients):
        rows = [",".join(map(repr, row)) for row in train[blog == client].tolist()]
        (folder / f"blog-{client:03}.csv").write_text("\n".join([",".join([*names, "comments"]), *rows]))
    largest = np.abs(train[:, :FEATURES]).max(axis=0).tolist()
    return {name: f"{-high!r}..{high!r}" for name, high in zip(names, largest, strict=True)}


def same_as_blogfeedback(archive: Path, tmp_path: Path, *settings: str) -> None:
    clients = load_experiment("blogfeedback", settings).clients
    columns = blogs_as_tables(archive, tmp_path / "blogs", clients)
    public = load_experiment("blogfeedback", settings)
    mapping = yaml.safe_load(public.to_yaml())
    mapping["task"] = {
        "name": "tabular",
        "target": "comments",
        "columns": columns,
        "scaling": "largest",
        "test_fraction": 0.0,
        "ridge": BlogFeedback().ridge / clients,
        "rows_a_client": 1,
    }
    own = experiment_of_text(yaml.safe_dump(mapping, sort_keys=False))
    all_rows = experiment_of_text(public.to_yaml(), ["task.validation_fraction=0"])
    models = []
    for experiment, data in ((all_rows, archive.parent), (own, tmp_path / "blogs")):
        simulation = Simulation(experiment, experiment.load(DataFolder(data, may_download=False), CPU), CPU)
        for _ in simulation.rounds():
            pass
        models.append(simulation.state.model)
    assert float(models[0].norm()) > 0
    assert torch.allclose(models[0], models[1], rtol=1e-4, atol=1e-5 * float(models[0].abs().max()))


def test_tables_of_blogs_train_the_same_model_as_the_public_task(tmp_path: Path) -> None:
    small_data.write_blogfeedback(tmp_path)
    # Dense: the small data's columns are often the same, and rounding would choose among them.
    settings = ("clients=4", "rounds=10", "schedule.period=8", "algorithm.density=1")
    same_as_blogfeedback(tmp_path / "BlogFeedback.zip", tmp_path, *settings)


@pytest.mark.slow
def test_tables_of_the_real_blogs_train_the_same_sparse_model(real_data: Path, tmp_path: Path) -> None:
    same_as_blogfeedback(real_data / "BlogFeedback.zip", tmp_path, "rounds=40", "schedule.period=32")


EXPERIMENT = """
name: clinics
rounds: 4
clients: 4
task:
  name: tabular
  target: cost
  columns: {age: 0..120, smoker: no | yes}
algorithm: {name: sparse_proxskip, density: 0.5, learning_rate: 0.5}
schedule: {period: 3}
codec: {precision: float32}  # a client with data of its own rounds by its name, in a simulation by its place
"""


def rounds_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_deployed_clients_measure_what_the_simulator_does(tmp_path: Path) -> None:
    """Four processes, each with a file of its own in another format; the server has none."""
    data = tmp_path / "data"
    data.mkdir()
    small_data.write_tabular(data)
    (tmp_path / "clinics.yaml").write_text(EXPERIMENT)
    for kind in ("simulate", "local"):
        command = [sys.executable, "-m", "server", kind, "clinics.yaml", "--data", "data", "--output", kind]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    simulated, deployed = rounds_of(tmp_path / "simulate"), rounds_of(tmp_path / "local")
    assert len(simulated) == len(deployed) == 4
    for expected, found in zip(simulated, deployed, strict=True):
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)
        assert {"test_r2", "test_squared_error", "train_loss"} <= set(found["metrics"])  # type: ignore[call-overload]
    by_client = dict(RunFolder(tmp_path / "local").clients())
    assert list(by_client) == [1, 2, 3, 4]
    for clients in by_client.values():
        assert sorted(clients) == ["clinic-0", "clinic-1", "clinic-2", "clinic-3"]
        assert all((one.memory_mb or 0) > 50 and one.vram_mb is None for one in clients.values())


def experiment_of_shelters() -> Experiment:
    text = (
        "name: shelters\nrounds: 2\nclients: 4\ntask: {name: image_folder, classes: [cat, dog], image_size: 16, "
        "network: mobilenet_v3, batch_size: 4}\nalgorithm: {name: sparse_proxskip, density: 0.2, learning_rate: 0.05}\n"
        "schedule: {period: 2}\n"
    )
    return experiment_of_text(text)


def test_pictures_of_16_bits_are_refused_not_cut_off(tmp_path: Path) -> None:
    small_data.write_image_folder(tmp_path, clients=2)
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000).save(tmp_path / "shelter-0" / "cat" / "8.png")
    with pytest.raises(UserError, match=r"8.png .* more than 8 bits"):
        experiment_of_shelters().task.load(DataFolder(tmp_path, may_download=False), clients=2, seed=0, device=CPU)


def test_a_folder_that_is_no_class_and_a_file_that_is_no_image_are_refused(tmp_path: Path) -> None:
    small_data.write_image_folder(tmp_path, clients=2)
    task = experiment_of_shelters().task
    folder = DataFolder(tmp_path, may_download=False)
    (tmp_path / "shelter-0" / "cat" / "7.jpg").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"7.jpg cannot be read as an image"):
        task.load(folder, clients=2, seed=0, device=CPU)
    (tmp_path / "shelter-0" / "cow").mkdir()
    with pytest.raises(UserError, match=r"cow is none of the experiment's classes: cat, dog"):
        task.load(folder, clients=2, seed=0, device=CPU)


def documented_task() -> str:
    text = (Path(__file__).parents[1] / "docs" / "your-data.md").read_text()
    return text.split("```python\n")[1].split("```")[0]


def test_the_task_in_the_documentation_finds_the_mean_of_what_nobody_shows(tmp_path: Path) -> None:
    """docs/your-data.md, word by word: a module of one's own, a .npy file a client, four processes over gRPC."""
    (tmp_path / "my_module.py").write_text(documented_task())
    data = tmp_path / "data"
    data.mkdir()
    parts = [np.random.default_rng(client).normal(client, 1, (6, 8)) for client in range(3)]
    for client, part in enumerate(parts):
        np.save(data / f"client-{client}.npy", part)
    experiment = (
        "name: means\nrounds: 60\nclients: 3\ntask:\n  name: my_module:Means\n  size: 8\n"
        "algorithm: {name: proxskip, learning_rate: 0.5}\nschedule: {period: 3}\n"
        "codec: {precision: float32}\n"  # to the last digits
    )
    (tmp_path / "means.yaml").write_text(experiment)
    command = [sys.executable, "-m", "server", "local", "means.yaml", "--data", "data", "--output", "run"]
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120, env=path)
    model = load_file(tmp_path / "run" / "model.safetensors")["model"]
    assert np.allclose(model, np.mean([part.mean(0) for part in parts], axis=0), atol=1e-3)
    assert "test_closeness" in rounds_of(tmp_path / "run")[-1]["metrics"]  # type: ignore[operator]


@pytest.mark.slow
def test_image_folders_train_a_network_on_real_images(real_data: Path, tmp_path: Path) -> None:
    """CIFAR-10 (JPEG), unpacked into a folder of images for each of three clients."""
    with tarfile.open(real_data / "cifar10-jpeg.tar.xz") as archive:
        for member in archive:
            part, label, number = Path(member.name).parts[-3:] if member.name.endswith(".jpg") else ("", "", "")
            place = int(Path(number).stem) if number else 300
            if part == "train" and label in ("airplane", "frog") and place < 300:
                target = tmp_path / f"client-{place % 3}" / label / number
                target.parent.mkdir(parents=True, exist_ok=True)
                file = archive.extractfile(member)
                assert file is not None
                target.write_bytes(file.read())
    experiment = experiment_of_text(
        "name: planes\nrounds: 8\nclients: 3\ntask: {name: image_folder, classes: [airplane, frog], image_size: 32, "
        "network: resnet18, batch_size: 16}\nschedule: {period: 8}\n"
        "algorithm: {name: sparse_proxskip, density: 0.3, learning_rate: 0.05}\n"
    )
    problem = experiment.load(DataFolder(tmp_path, may_download=False), CPU)
    records = list(Simulation(experiment, problem, CPU).rounds())
    assert records[-1].metrics["test_accuracy"] > 0.75  # 0.5 is chance; measured: 0.83 to 0.92 from round 4 on
    assert records[-1].metrics["train_loss"] < 0.8 * records[0].metrics["train_loss"]
