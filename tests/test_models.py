"""What a run leaves to those who use its model: names, a card, predictions, and files for other programs."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from common.errors import UserError
from common.experiment.experiment import Experiment
from common.experiment.files import experiment_of_text, load_experiment
from common.learning.examples import Examples
from common.learning.partition import hold_out
from common.rounds.state import ServerState
from common.tasks.tabular import Tabular
from server.model.card import card
from server.model.exports import Format, exported, to_onnx
from server.model.finished import FinishedModel
from server.model.predictions import Predictions
from server.runs.run_folder import RunFolder
from tests.harness import small_data
from tests.harness.models import CPU, finished_run
from tests.harness.processes import proxskip_server

DOCUMENTS = Path(__file__).parent.parent / "docs"
CLINICS = next(re.finditer(r"```yaml\n(.*?)```", (DOCUMENTS / "your-data.md").read_text(), re.DOTALL))[1]
SNIPPETS = re.findall(r"```python\n(.*?)```", (DOCUMENTS / "models.md").read_text(), re.DOTALL)
SHORT = ["rounds=2", "clients=3", "schedule.period=2"]
SMALL_NETWORK = ["task.width=4", "task.batch_size=4", "task.loss_samples=4"]
RUNS = ("clinics", "smokers", "digits", "femnist", "blogfeedback", "cifar10", "shelters")
SMOKERS = """
name: smokers
rounds: 20
clients: 4
task: {name: tabular, target: smoker, classes: no | yes, columns: {age: 10..120, cost: 0..2000}, scaling: largest}
algorithm: {name: sparse_proxskip, density: 0.6, learning_rate: 0.5}
"""
SHELTERS = """
name: shelters
rounds: 1
clients: 4
task: {name: image_folder, classes: [cat, dog], network: mobilenet_v3, image_size: 32, batch_size: 4}
algorithm: {name: sparse_proxskip, density: 0.1, learning_rate: 0.1}
"""
PATIENTS = "age,blood_pressure,smoker\n61,140,yes\n,90,former\n30,?,\n"


def write_clinics(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for clinic in range(3):
        rows = [
            f"{age},{pressure},{smoker},{10 * age + 2 * pressure + 300 * (smoker == 'yes')}"
            for age, pressure, smoker in zip(
                generator.integers(0, 120, 30),
                generator.integers(40, 260, 30),
                generator.choice(["no", "yes", "former"], 30),
                strict=True,
            )
        ]
        (folder / f"clinic-{clinic}.csv").write_text("\n".join(["age,blood_pressure,smoker,cost", *rows]) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of public data sets, and in folders by the name of a run the data of clients' own."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("blogfeedback", "femnist", "cifar10"):
        getattr(small_data, f"write_{name}")(folder)
    for name, write in (
        ("clinics", write_clinics),
        ("smokers", small_data.write_tabular),
        ("shelters", small_data.write_image_folder),
    ):
        (folder / name).mkdir()
        write(folder / name)
    return folder


def experiment_of(name: str) -> Experiment:
    match name:
        case "clinics":
            return experiment_of_text(CLINICS)
        case "smokers":
            return experiment_of_text(SMOKERS)
        case "shelters":
            return experiment_of_text(SHELTERS)
    return load_experiment(name, [*SHORT, *(SMALL_NETWORK if name == "cifar10" else [])])


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run of each task, and of each kind of table."""
    folder = tmp_path_factory.mktemp("runs")
    for name in RUNS:
        own = data / name
        finished_run(folder / name, experiment_of(name), own if own.is_dir() else data)
    return folder


def examples_of(model: FinishedModel, data: Path) -> Examples:
    experiment = model.experiment
    examples = experiment.task.examples(data, clients=experiment.clients, seed=experiment.seed)
    assert examples
    return examples


def data_of(name: str, data: Path) -> Path:
    return {"shelters": data / name / "shelter-0"}.get(name, data / name if (data / name).is_dir() else data)


def predictions_of(model: FinishedModel, data: Path) -> Predictions:
    predictor, blueprint = model.predictor()
    return Predictions.of(predictor, blueprint.classes, examples_of(model, data))


@pytest.mark.parametrize("name", RUNS)
def test_a_saved_model_has_the_names_of_its_module_and_says_what_it_is(name: str, runs: Path) -> None:
    model = RunFolder(runs / name).model()
    model.predictor()  # which takes all tensors, and no others
    with safe_open(runs / name / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    last = RunFolder(runs / name).rounds()[-1]
    assert float(metadata["score"]) == last.metrics[metadata["metric"]]
    assert experiment_of_text(metadata["experiment"]) == model.experiment
    assert 0 < float(metadata["density"]) < 1
    assert metadata["task"] == {"clinics": "tabular", "smokers": "tabular", "shelters": "image_folder"}.get(name, name)
    assert sorted(path.name for path in (runs / name).glob("*.safetensors")) == [
        *(["journal.safetensors"] if (runs / name / "journal.safetensors").exists() else []),
        "model.safetensors",
    ]


def test_tensors_have_shapes_that_others_know(runs: Path) -> None:
    shapes = {name: list(tensor.shape) for name, tensor in load_file(runs / "digits" / "model.safetensors").items()}
    assert shapes == {"weight": [10, 64], "bias": [10]}
    shapes = {name: list(tensor.shape) for name, tensor in load_file(runs / "clinics" / "model.safetensors").items()}
    assert shapes == {"weight": [1, 8], "bias": [1], "low": [8], "span": [8]}
    network = load_file(runs / "cifar10" / "model.safetensors")
    assert network["stem.0.weight"].shape == (4, 3, 3, 3)
    assert not network["stem.1.running_mean"].eq(0).all()  # as training has left it
    assert int(network["stem.1.num_batches_tracked"]) == 0


@pytest.mark.parametrize("name", ["digits", "femnist", "blogfeedback", "cifar10"])
def test_the_test_set_of_public_data_gives_the_metric_of_the_run(name: str, runs: Path, data: Path) -> None:
    model = RunFolder(runs / name).model()
    measured = predictions_of(model, data).metrics()[model.metric.removeprefix("test_")]
    assert measured == (pytest.approx(model.score, rel=1e-12) if name == "blogfeedback" else model.score)


@pytest.mark.parametrize("name", ["clinics", "smokers"])
def test_rows_that_were_held_out_give_the_metric_of_the_run(name: str, runs: Path, data: Path, tmp_path: Path) -> None:
    model = RunFolder(runs / name).model()
    task = model.experiment.task
    assert isinstance(task, Tabular)
    lines = [",".join([*task.columns, task.target])]
    for path in sorted((data / name).iterdir()):
        everything = task.read_examples(path)
        count = round(task.test_fraction * len(everything.names))
        held_out = hold_out(count, len(everything.names), path.stem, model.experiment.seed)[1]
        lines += [_as_text(task, everything, row) for row in held_out.tolist()]
    (tmp_path / "held-out.csv").write_text("\n".join(lines) + "\n")
    measured = predictions_of(model, tmp_path / "held-out.csv").metrics()[model.metric.removeprefix("test_")]
    assert measured == pytest.approx(model.score, rel=1e-12)


def _as_text(task: Tabular, examples: Examples, row: int) -> str:
    inputs = zip(task.kinds.values(), examples.inputs, strict=True)
    entries = [kind.values[int(one[row])] if hasattr(kind, "values") else repr(float(one[row])) for kind, one in inputs]
    target = examples.targets[row]
    return ",".join([*entries, task.labels.values[int(target)] if task.labels else repr(float(target))])


def onnx_inputs(model: FinishedModel, examples: Examples) -> dict[str, np.ndarray]:
    assert model.blueprint
    pairs = zip(model.blueprint.inputs, examples.inputs, strict=True)
    return {
        one.name: np.array([one.values[place] if place >= 0 else "?" for place in given.tolist()])
        if one.values
        else given.numpy()
        for one, given in pairs
    }


@pytest.mark.parametrize("name", ["clinics", "smokers", "digits", "blogfeedback", "cifar10"])
def test_onnx_predicts_what_we_predict(name: str, runs: Path, data: Path) -> None:
    model = RunFolder(runs / name).model()
    predictions = predictions_of(model, data_of(name, data))
    graph = to_onnx(model)
    assert str(Path(__file__).parent.parent).encode() not in graph  # it names no file of this machine
    session = onnxruntime.InferenceSession(graph)
    (found,) = session.run(None, onnx_inputs(model, predictions.examples))
    assert np.allclose(found, predictions.outputs, rtol=1e-5, atol=1e-5)
    assert session.get_modelmeta().custom_metadata_map == model.metadata()


def test_onnx_knows_missing_entries_and_any_name_of_a_column() -> None:
    columns = {"div": "no | yes", "prediction": "5..9", "linear": "0..1", "model/x y:z": "a | b", "unsqueeze": "0..1"}
    text = SMOKERS.replace("columns: {age: 10..120, cost: 0..2000}", f"columns: {json.dumps(columns)}")
    experiment = experiment_of_text(text.replace("classes: no | yes, ", "missing: indicate, "))
    task = experiment.task
    assert isinstance(task, Tabular)
    problem = task.problem([], clients=4, seed=0, device=CPU)
    state = ServerState(model=torch.randn(task.features, generator=torch.Generator().manual_seed(0)))
    model = FinishedModel.of(experiment, problem, state, None)
    places, numbers = torch.tensor([0, -1, 1]), torch.tensor([5.5, torch.nan, 9.0], dtype=torch.float64)
    examples = Examples(names="abc", inputs=(places, numbers, numbers, places, numbers), targets=np.full(3, np.nan))
    session = onnxruntime.InferenceSession(to_onnx(model))
    (found,) = session.run(None, onnx_inputs(model, examples))
    assert np.allclose(found, Predictions.of(model.predictor()[0], (), examples).outputs, rtol=1e-12)
    assert Predictions.of(model.predictor()[0], (), examples).metrics() == {}


@pytest.mark.parametrize("name", RUNS)
def test_torch_loads_an_export_without_code_and_predicts_the_same(name: str, runs: Path, data: Path) -> None:
    model = RunFolder(runs / name).model()
    predictions = predictions_of(model, data_of(name, data))
    tensors = torch.load(io.BytesIO(exported(model, "torch")), weights_only=True)
    blueprint = model.experiment.task.blueprint()
    assert blueprint
    is_linear = isinstance(blueprint.module, nn.Linear)
    module = nn.Linear(*reversed(tensors["weight"].shape)) if is_linear else blueprint.module
    module.load_state_dict(tensors)
    prepared: Tensor = blueprint.preparation(*predictions.examples.inputs)
    with torch.no_grad():
        scores = module.eval()(prepared.float())
    found = scores.softmax(1) if blueprint.classes else scores.squeeze(1)
    assert np.allclose(found.numpy(), predictions.outputs, rtol=1e-5, atol=1e-5)


def test_a_sparse_export_is_smaller(runs: Path) -> None:
    model = RunFolder(runs / "cifar10").model()
    content = exported(model, "sparse")
    assert len(content) < 0.3 * (runs / "cifar10" / "model.safetensors").stat().st_size


def test_coefficients_are_in_units_of_their_columns(runs: Path, tmp_path: Path) -> None:
    """The prediction is the intercept, and what each column adds."""
    model = RunFolder(runs / "clinics").model()
    with safe_open(runs / "clinics" / "model.safetensors", "pt") as file:
        listed = json.loads(file.metadata()["coefficients"])
    values = {one["name"]: one["value"] for one in listed}
    sizes = [abs(one["value"]) for one in listed[:-1]]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == int(load_file(runs / "clinics" / "model.safetensors")["weight"].count_nonzero()) < 8
    (tmp_path / "new.csv").write_text(PATIENTS)
    added = [
        61 * values.get("age", 0) + 140 * values.get("blood_pressure", 0) + values.get("smoker=yes", 0),
        # A missing number counts as the lowest of its range.
        values.get("age is missing", 0) + 90 * values.get("blood_pressure", 0) + values.get("smoker=former", 0),
        30 * values.get("age", 0)
        + 40 * values.get("blood_pressure", 0)
        + values.get("blood_pressure is missing", 0)
        + values.get("smoker is missing", 0),
    ]
    predicted = predictions_of(model, tmp_path / "new.csv").outputs
    assert np.allclose(predicted, np.array(added) + values["intercept"], rtol=1e-9)


def test_coefficients_of_classes_name_the_class(runs: Path) -> None:
    model = RunFolder(runs / "smokers").model()
    assert model.coefficients
    assert {one.name for one in model.coefficients.intercepts} == {"no: intercept", "yes: intercept"}
    assert {one.name for one in model.coefficients.largest} <= {"no: age", "yes: age", "no: cost", "yes: cost"}


@pytest.mark.parametrize("name", RUNS)
def test_a_card_says_what_a_stranger_needs(name: str, runs: Path) -> None:
    model = RunFolder(runs / name).model()
    _, front_matter, text = (runs / name / "README.md").read_text().split("---\n", 2)
    known = yaml.safe_load(front_matter)
    assert known["library_name"] == "sparse-proxskip"
    assert known["metrics"] == [model.metric.removeprefix("test_")]
    assert "federated-learning" in known["tags"]
    for said in (model.data_name, "`sparse_proxskip`", f"{model.score:.4f}", f"{model.density:.3g}", "## Limits"):
        assert said in text
    assert ("## Coefficients" in text) == (name in ("clinics", "smokers", "blogfeedback"))


def test_the_lines_of_a_card_run(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.onnx").write_bytes(to_onnx(RunFolder(runs / "smokers").model()))
    (snippet,) = re.findall(r"```python\n(.*?)```", (runs / "smokers" / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    assert np.isclose(_names_after(snippet)["probabilities"].sum(), 1.0)


def test_the_lines_of_a_card_are_python_however_many_columns_there_are() -> None:
    columns = {f"column {number}": "0..1" for number in range(20)}
    experiment = experiment_of_text(SMOKERS.replace("{age: 10..120, cost: 0..2000}", json.dumps(columns)))
    problem = experiment.load_for_server(None, CPU)
    text = card(FinishedModel.of(experiment, problem, problem.initial_state(), None))
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(snippet, "card", "exec")
    assert "and 14 more columns" in snippet


def test_a_card_never_takes_the_place_of_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "README.md").write_text("mine")
    finished_run(tmp_path / "run", experiment_of("digits"), None)
    assert (tmp_path / "run" / "README.md").read_text() == "mine"
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_the_lines_of_the_document_run_and_agree(
    runs: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = load_experiment("cifar10-small", ["rounds=1", "clients=2", "schedule.period=1", "task.batch_size=4"])
    finished_run(tmp_path / "runs" / "cifar10-small", small, data)
    (tmp_path / "runs" / "clinics").symlink_to(runs / "clinics")
    (tmp_path / "new.csv").write_text("age,blood_pressure,smoker\n61,140,yes\n")
    expected = predictions_of(RunFolder(runs / "clinics").model(), tmp_path / "new.csv").outputs
    written = {"torch": "model.pt", "onnx": "model.onnx", "sparse": "model.sparse.safetensors"}
    formats: tuple[Format, ...] = ("torch", "onnx", "sparse")
    for to in formats:
        (tmp_path / "runs" / "clinics" / written[to]).write_bytes(exported(RunFolder(runs / "clinics").model(), to))
    network = RunFolder(tmp_path / "runs" / "cifar10-small")
    (network.path / "model.pt").write_bytes(exported(network.model(), "torch"))
    monkeypatch.chdir(tmp_path)
    found = [_names_after(snippet) for snippet in SNIPPETS]
    predicted = [names["prediction"].item() for names in found if "prediction" in names]
    assert predicted == pytest.approx([float(expected[0])] * 3, rel=1e-5)
    (dense,) = [names["model"] for names in found if "shape" in names]
    whole = load_file(runs / "clinics" / "model.safetensors")
    assert set(dense) == set(whole)
    assert all(np.array_equal(dense[name], whole[name].numpy()) for name in whole)
    (resnet,) = [names["network"] for names in found if "network" in names]
    assert resnet.state_dict().keys() == network.model().tensors.keys()


def _names_after(snippet: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(snippet, names)  # noqa: S102 - it is ours
    return names


def test_predict_writes_a_row_for_each_example(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(PATIENTS)
    output = tmp_path / "predictions.csv"
    arguments = ("predict", str(runs / "clinics"), "--data", str(tmp_path / "new.csv"), "--output", str(output))
    finished = proxskip_server(*arguments)
    assert finished.returncode == 0, finished.stderr
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert [row["example"] for row in rows] == ["new.csv:1", "new.csv:2", "new.csv:3"]
    expected = predictions_of(RunFolder(runs / "clinics").model(), tmp_path / "new.csv").outputs
    assert [float(row["prediction"]) for row in rows] == pytest.approx(list(expected), rel=1e-8)
    assert "target" not in rows[0]
    assert "coefficients are not zero" in finished.stdout
    assert "intercept" in finished.stdout
    assert "3 examples: no right answers to compare with" in finished.stdout
    again = proxskip_server(*arguments)
    assert (again.returncode, again.stdout) == (2, "")
    assert "is there already" in again.stderr


def test_targets_may_be_known_of_some_rows(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age,cost,smoker\n60,700,yes\n30,300,\n80,1300,yes\n")
    predictions = predictions_of(RunFolder(runs / "smokers").model(), tmp_path / "new.csv")
    answers = [row[-1] for row in predictions.rows()]
    assert answers == ["yes", "", "yes"]
    right = [row[1] == "yes" for row in predictions.rows()]
    assert predictions.metrics() == {"accuracy": (right[0] + right[2]) / 2}


def test_images_are_predicted_with_and_without_their_class(runs: Path, data: Path, tmp_path: Path) -> None:
    model = RunFolder(runs / "shelters").model()
    by_class = predictions_of(model, data / "shelters" / "shelter-0")
    assert by_class.examples.names[0] == "cat/0.jpg"
    assert set(by_class.metrics()) == {"accuracy"}
    for number, file in enumerate(sorted((data / "shelters" / "shelter-0").rglob("*.jpg"))):
        (tmp_path / f"{number}.jpg").write_bytes(file.read_bytes())
    unknown = predictions_of(model, tmp_path)
    assert np.array_equal(unknown.outputs, by_class.outputs)
    assert unknown.metrics() == {}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("age,smoker\n1,no\n", "new.csv has no column 'blood_pressure'"),
        ("age,blood_pressure,smoker\n1,100,no\nold,100,no\n", "new.csv, row 2: age = 'old' is not a number"),
        ("age,blood_pressure,smoker\n430,100,no\n", "new.csv, row 1: age = '430' is beyond its range in the schema"),
        ("age,blood_pressure,smoker\n30,100,pipe\n", "new.csv, row 1: smoker = 'pipe' is none of its values"),
        ("age,blood_pressure,smoker,cost\n30,100,no,dear\n", "new.csv, row 1: cost = 'dear' is not a number"),
        ("age,blood_pressure,smoker\n", "new.csv has no rows"),
        ("", "new.csv has no column 'age'"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_file_column_and_row(
    content: str, complaint: str, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text(content)
    with pytest.raises(UserError, match=re.escape(complaint)):
        predictions_of(RunFolder(runs / "clinics").model(), tmp_path / "new.csv")


def test_data_that_is_none_is_refused(runs: Path, tmp_path: Path) -> None:
    task = experiment_of("clinics").task
    for data, complaint in (
        (None, "say which file"),
        (tmp_path / "no.csv", "no such file"),
        (tmp_path, "no such file"),
    ):
        with pytest.raises(UserError, match=complaint):
            task.examples(data, clients=3, seed=0)
    with pytest.raises(UserError, match="there are no images in it"):
        experiment_of("shelters").task.examples(tmp_path, clients=3, seed=0)


def test_folders_without_a_model_are_refused_with_a_way_on(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run's folder"):
        RunFolder(tmp_path / "nowhere").model()
    begun = RunFolder.create(tmp_path / "begun", experiment_of("digits"), "digits")
    with pytest.raises(UserError, match=r"no model yet, after 0 of 2 rounds; .* --resume .*begun"):
        begun.model()
    refused = proxskip_server("export", str(begun.path), "--to", "onnx")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: ")
    assert len(refused.stderr.splitlines()) == 1


def test_files_that_are_no_model_are_refused(runs: Path, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", experiment_of("digits"), "digits")
    file = folder.path / "model.safetensors"
    file.write_bytes(b"no model")
    with pytest.raises(UserError, match="is not a finished model"):
        folder.model()
    save_file({"model": torch.zeros(650)}, file)
    with pytest.raises(UserError, match="does not say what it is"):
        folder.model()
    file.write_bytes((runs / "femnist" / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match="the tensors are not those of the task digits"):
        folder.model().predictor()


def test_a_task_that_does_not_say_what_its_model_is_keeps_the_vector(tmp_path: Path) -> None:
    text = "name: q\nrounds: 2\nclients: 3\ntask: {name: 'tests.harness.quadratics:Quadratics'}\n"
    folder = finished_run(
        tmp_path / "run", experiment_of_text(text + "algorithm: {name: proxskip, learning_rate: 0.1}"), None
    )
    assert list(load_file(folder.path / "model.safetensors")) == ["model"]
    assert "## Use" not in (folder.path / "README.md").read_text()
    with pytest.raises(UserError, match="does not say how to predict"):
        folder.model().predictor()


def test_onnx_without_its_packages_names_the_extra(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as where it is not installed
    with pytest.raises(UserError, match=r"pip install 'sparse-proxskip\[export\]'"):
        to_onnx(RunFolder(runs / "digits").model())


def test_export_says_how_large_the_files_are_and_keeps_what_is_there(runs: Path, tmp_path: Path) -> None:
    output = tmp_path / "small.safetensors"
    arguments = ("export", str(runs / "digits"), "--to", "sparse", "--output", str(output))
    finished = proxskip_server(*arguments)
    assert finished.returncode == 0, finished.stderr
    assert f"{output.stat().st_size / 1e3:.1f} kB" in finished.stdout
    assert "a smaller file; and no faster model" in finished.stdout
    assert proxskip_server(*arguments).returncode == 2
