"""What every task promises, checked on each one found, and what each promises of its own."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from common.errors import UserError
from common.experiment import plugins
from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from common.learning.images import ImageTask, Pictures
from common.learning.network_task import NetworkTask
from common.learning.networks import ResNet18
from common.learning.objectives.network import NetworkObjective
from common.learning.task import OwnDataTask, Problem, Task
from common.learning.vision import torchvision
from common.rounds.algorithm import client_round
from common.rounds.objective import Objective
from common.rounds.state import ServerState
from common.tasks import cifar10, digits
from common.tasks.blogfeedback import CONTENT_SHA256, BlogFeedback, content_sha256, read_archive
from common.tasks.cifar10 import Cifar10, read_torchvision_folder
from common.tasks.digits import Digits
from common.tasks.femnist import Femnist, read_qmnist
from server.simulation.simulation import Simulation
from tests.harness import small_data

USERS_OWN = "tests.harness.own_models:Points"
NAMES = [*plugins.available(Task.plugin_package), USERS_OWN]
WITH_FILES = [name for name in NAMES if hasattr(small_data, f"write_{name}")]
CPU = torch.device("cpu")
OPTIONS: dict[str, dict[str, object]] = {
    "cifar10": {"width": 4, "batch_size": 4, "loss_samples": 5},
    "image_folder": {"classes": ("cat", "dog"), "network": "mobilenet_v3", "image_size": 32, "batch_size": 4},
    "tabular": {"target": "cost", "columns": {"age": "0..120", "smoker": "no | yes"}},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    """A folder with all public data sets, and in folders by the task's name the data of clients' own."""
    folder = tmp_path_factory.mktemp("data")
    for client in range(4):
        (folder / USERS_OWN / f"client-{client}").mkdir(parents=True)
    for name in WITH_FILES:
        place = folder / name if has_own_data(name) else folder
        place.mkdir(exist_ok=True)
        getattr(small_data, f"write_{name}")(place)
    return DataFolder(folder, may_download=False)


def has_own_data(name: str) -> bool:
    return issubclass(plugins.find(Task.plugin_package, name, Task), OwnDataTask)


def load(name: str, data: DataFolder, clients: int = 3, seed: int = 1) -> Problem:
    task: Task = plugins.find(Task.plugin_package, name, Task)(**OPTIONS.get(name, {}))
    if has_own_data(name) and (data.path / name).is_dir():
        data = DataFolder(data.path / name, may_download=False)
    return task.load(data, clients=clients, seed=seed, device=CPU)


def first_gradient(objective: Objective, weights: torch.Tensor, buffers: torch.Tensor | None = None) -> torch.Tensor:
    with objective.round(1, buffers) as gradient:
        return gradient(weights).clone()


def nearby(problem: Problem, rows: int | None = None) -> torch.Tensor:
    model = problem.initial_state().model
    shape = model.shape if rows is None else (rows, *model.shape)
    return model + 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", NAMES)
def test_a_task_loads_the_same_twice_and_another_seed_differs(name: str, data: DataFolder) -> None:
    first, again, other = load(name, data), load(name, data), load(name, data, seed=2)
    assert first.clients == 3
    assert torch.equal(first.initial_state().model, again.initial_state().model)
    weights = nearby(first)

    def gradients(problem: Problem) -> torch.Tensor:
        objectives = [problem.objective([client]) for client in range(problem.clients)]
        return torch.stack([first_gradient(one, weights, problem.initial_state().buffers) for one in objectives])

    assert torch.equal(gradients(first), gradients(again))
    fixed = name == "blogfeedback"  # blogs as they are, one split into training and validation rows, a start at zero
    assert torch.equal(gradients(first), gradients(other)) == fixed


@pytest.mark.parametrize("name", NAMES)
def test_a_round_can_be_repeated(name: str, data: DataFolder) -> None:
    problem = load(name, data)
    buffers = problem.initial_state().buffers
    objective = problem.objective([1])

    def round_of_gradients(number: int) -> list[torch.Tensor]:
        with objective.round(number, buffers) as gradient:
            return [gradient(nearby(problem)).clone() for _ in range(5)]

    first, between, repeated = round_of_gradients(4), round_of_gradients(5), round_of_gradients(4)
    assert all(torch.equal(one, other) for one, other in zip(first, repeated, strict=True))
    if not problem.batched:  # mini-batches: another round has others
        assert not torch.equal(first[0], between[0])


@pytest.mark.parametrize("name", NAMES)
def test_metrics_are_finite_and_include_the_headline(name: str, data: DataFolder) -> None:
    problem = load(name, data)
    metrics = problem.evaluate(problem.initial_state())
    assert problem.metric in metrics
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", NAMES)
def test_more_clients_than_the_data_has_is_refused(name: str, data: DataFolder) -> None:
    with pytest.raises(UserError, match="clients = 100000"):
        load(name, data, clients=100_000)


@pytest.mark.parametrize("name", WITH_FILES)
def test_missing_data_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"is not in the data folder {tmp_path}"):
        load(name, DataFolder(tmp_path, may_download=False))


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_clients_and_the_gradient_is_that_of_the_loss(name: str, data: DataFolder) -> None:
    problem = load(name, data)
    if not problem.batched:
        pytest.skip("its clients run one by one")
    weights = nearby(problem, rows=problem.clients)
    batch = problem.objective(range(problem.clients))
    gradients = first_gradient(batch, weights)
    losses = batch.loss(weights, None)
    assert losses.shape == (problem.clients,)
    for client in range(problem.clients):
        alone = problem.objective([client])
        own = first_gradient(alone, weights[client])
        assert own.shape == weights[client].shape
        assert torch.allclose(gradients[client], own, rtol=1e-4, atol=1e-5 * float(own.abs().max()))
        assert torch.allclose(losses[client], alone.loss(weights[client], None), rtol=1e-5)
        leaf = weights[client].clone().requires_grad_()
        alone.loss(leaf, None).backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        assert torch.allclose(own, leaf.grad, rtol=1e-3, atol=1e-4 * float(own.abs().max()))


@pytest.mark.parametrize("scaling", ["largest", "range"])
def test_least_squares_from_thin_factors_is_that_of_the_rows(
    scaling: Literal["largest", "range"], data: DataFolder
) -> None:
    task = BlogFeedback(validation_fraction=0, ridge=30.0, scaling=scaling)
    problem = task.load(data, clients=4, seed=0, device=CPU)
    train, _ = read_archive(data.path / "BlogFeedback.zip")
    rows = train[train[:, 0] == 2.0]
    low, high = train[:, :280].min(0), train[:, :280].max(0)
    if scaling == "largest":
        low, high = np.zeros(280), np.abs(train[:, :280]).max(0)
    features = np.hstack([(rows[:, :280] - low) / np.where(high > low, high - low, 1), np.ones((len(rows), 1))])
    weights = np.linspace(-1, 1, 281)
    expected = features.T @ (features @ weights - rows[:, 280]) + 30 / 4 * weights
    gradient = first_gradient(problem.objective([2]), torch.tensor(weights).float())
    assert np.allclose(gradient.numpy(), expected, rtol=1e-4, atol=1e-3)


def test_the_digits_are_those_of_scikit_learn() -> None:
    ours, theirs = digits.read_images(), load_digits()
    assert np.array_equal(ours.features, (theirs.data / 16).astype(np.float32))
    assert np.array_equal(ours.labels, theirs.target)


def test_digits_can_be_held_out_to_tune_with_and_the_test_set_stays_as_it_is(tmp_path: Path) -> None:
    folder, device = DataFolder(tmp_path, may_download=False), torch.device("cpu")
    plain, tuned = (
        Digits(validation_fraction=share).load(folder, clients=4, seed=0, device=device) for share in (0.0, 0.25)
    )
    state = ServerState(model=torch.randn(650, generator=torch.Generator().manual_seed(0)))
    without, with_validation = plain.evaluate(state), tuned.evaluate(state)
    assert with_validation.keys() - without.keys() == {"validation_accuracy"}
    assert with_validation["test_accuracy"] == without["test_accuracy"]
    losses = [float(problem.objective([0]).loss(state.model, None)) for problem in (plain, tuned)]
    assert losses[0] != losses[1]  # fewer are left to train on


@pytest.mark.parametrize("name", ["blogfeedback", "femnist", "digits"])
def test_several_points_of_each_client_are_as_good_as_one_by_one(name: str, data: DataFolder) -> None:
    problem = load(name, data)
    points = 3
    objective = problem.objective(range(problem.clients))
    rows = torch.randn(problem.clients, points, problem.initial_state().model.shape[-1]) / 10
    together = first_gradient(objective, rows.flatten(0, 1)).reshape(rows.shape)
    losses = objective.loss(rows.flatten(0, 1), None).reshape(rows.shape[:2])
    for point in range(points):
        alone = first_gradient(objective, rows[:, point].clone())
        assert torch.allclose(together[:, point], alone, rtol=1e-4, atol=1e-4 * float(alone.abs().max()))
        assert torch.allclose(losses[:, point], objective.loss(rows[:, point].clone(), None), rtol=1e-4)


def test_validation_rows_are_held_out(data: DataFolder) -> None:
    everything = BlogFeedback(validation_fraction=0).load(data, clients=4, seed=0, device=CPU)
    most = BlogFeedback(validation_fraction=0.25).load(data, clients=4, seed=0, device=CPU)
    assert set(everything.evaluate(everything.initial_state())) == {"test_r2"}
    assert set(most.evaluate(most.initial_state())) == {"test_r2", "validation_r2"}

    def half_of_squared_targets(problem: Problem) -> float:
        return float(problem.objective(range(4)).loss(torch.zeros(4, 281), None).sum())

    held_out = most._held_out["validation"][1]  # type: ignore[attr-defined]
    assert len(held_out) == 8  # a quarter of 30 rows, rounded up
    left = half_of_squared_targets(everything) - half_of_squared_targets(most)
    assert left == pytest.approx(float(held_out @ held_out) / 2, rel=1e-4)


def test_the_mean_of_the_clients_losses_is_the_loss_over_all_samples(data: DataFolder) -> None:
    one = Digits(ridge=0.0).load(data, clients=1, seed=0, device=CPU)
    many = Digits(ridge=0.0, size_variance=1.0).load(data, clients=7, seed=0, device=CPU)
    weights = nearby(one)
    mean = many.objective(range(7)).loss(weights.expand(7, -1), None).mean()
    assert float(mean) == pytest.approx(float(one.objective([0]).loss(weights, None)), rel=1e-5)


DAMAGED_FILES = {
    "other columns": {"blogData_train.csv": "1,2,3\n", "blogData_test-1.csv": "1,2,3\n"},
    "other files": {"train.csv": "1,2,3\n", "blogData_test-1.csv": "1,2,3\n"},
    "an empty file": {"blogData_train.csv": "", "blogData_test-1.csv": "1,2,3\n"},
    "no number": {"blogData_train.csv": ",".join(["nan"] * 281), "blogData_test-1.csv": "1,2,3\n"},
}


@pytest.mark.parametrize("damage", ["truncated", "not a zip", "flipped byte", "other compression", *DAMAGED_FILES])
def test_a_damaged_archive_is_named(damage: str, data: DataFolder, tmp_path: Path) -> None:
    whole = bytearray((data.path / "BlogFeedback.zip").read_bytes())
    path = tmp_path / "BlogFeedback.zip"
    if damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "not a zip":
        path.write_bytes(b"<html>not found</html>")
    elif damage == "flipped byte":
        whole[200] ^= 255
        path.write_bytes(whole)
    elif damage == "other compression":
        for place in (8, whole.index(b"PK\x01\x02") + 10):  # the method, in the file's header and in the directory
            whole[place] = 99
        path.write_bytes(whole)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in DAMAGED_FILES[damage].items():
                archive.writestr(name, content)
    with pytest.raises(UserError, match=r"BlogFeedback\.zip .*download it again"):
        load("blogfeedback", DataFolder(tmp_path, may_download=False))


def test_the_published_blogfeedback_has_554_blogs(real_data: Path) -> None:
    assert content_sha256(real_data / "BlogFeedback.zip") == CONTENT_SHA256
    train, test = read_archive(real_data / "BlogFeedback.zip")
    assert (train.shape, test.shape) == ((52_397, 281), (7_624, 281))
    assert len(np.unique(train[:, :50], axis=0)) == 554
    assert int(0.9 * len(train)) == 47_157


def test_mnist_by_writer_and_femnist_are_told_apart(data: DataFolder, tmp_path: Path) -> None:
    small_data.write_femnist(tmp_path)
    both = DataFolder(tmp_path, may_download=False)
    assert Femnist().load(both, clients=2, seed=0, device=CPU).data_name == "MNIST by writer"
    small_data.write_leaf(tmp_path)
    assert Femnist().load(both, clients=2, seed=0, device=CPU).data_name == "FEMNIST"
    chosen = Femnist(source="mnist_by_writer").load(both, clients=2, seed=0, device=CPU)
    assert chosen.data_name == "MNIST by writer"
    letters = Femnist(classes=62).load(both, clients=2, seed=0, device=CPU)
    assert letters.initial_state().model.shape == (785 * 62,)
    with pytest.raises(UserError, match="10 digits only"):
        Femnist(classes=62, source="mnist_by_writer").load(both, clients=2, seed=0, device=CPU)


def test_leaf_files_that_are_something_else_are_named(tmp_path: Path) -> None:
    small_data.write_leaf(tmp_path)
    broken = next((tmp_path / "femnist" / "train").glob("*.json"))
    broken.write_text('{"users": []}', encoding="utf-8")
    with pytest.raises(UserError, match=f"{broken.name} is not in LEAF's json layout"):
        load("femnist", DataFolder(tmp_path, may_download=False))
    for content in ('{"user_data": {}}', '{"user_data": {"a": {"x": [[0.5]], "y": [-1]}}}'):
        for path in broken.parent.glob("*.json"):
            path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match="is not FEMNIST in LEAF's json layout"):
            load("femnist", DataFolder(tmp_path, may_download=False))


def test_a_broken_writers_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mnist_writers.npz").write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(UserError, match=r"mnist_writers\.npz is damaged"):
        load("femnist", DataFolder(tmp_path, may_download=False))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"writer_train": np.zeros(3)}, "60 training images have 3 writers"),
        ({"y_test": np.full(20, 11)}, "test labels are not between 0 and 9"),
        ({"X_train": np.zeros((60, 5, 5))}, "training images are not 60 pictures"),
    ],
)
def test_a_writers_file_that_does_not_fit_together_is_named(
    change: dict[str, np.ndarray], complaint: str, tmp_path: Path
) -> None:
    small_data.write_femnist(tmp_path)
    with np.load(tmp_path / "mnist_writers.npz") as file:
        arrays = {**file, **change}
    np.savez(tmp_path / "mnist_writers.npz", **arrays)
    with pytest.raises(UserError, match=complaint):
        load("femnist", DataFolder(tmp_path, may_download=False))


def test_qmnist_is_read_as_torchvision_keeps_it(tmp_path: Path) -> None:
    raw = tmp_path / "QMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 30), ("test", 10_000)):
        images = np.full((count, 28, 28), 128, np.uint8)
        labels = np.zeros((count, 8), ">i4")
        labels[:, 0], labels[:, 2] = np.arange(count) % 10, np.arange(count) // 10
        header = struct.pack(">4B3i", 0, 0, 8, 3, count, 28, 28)
        (raw / f"qmnist-{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">4B2i", 0, 0, 12, 2, count, 8)
        (raw / f"qmnist-{part}-labels-idx2-int").write_bytes(header + labels.tobytes())
        for path in raw.glob(f"qmnist-{part}-*"):
            if path.suffix != ".gz":
                (raw / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    handwriting = read_qmnist(tmp_path, classes=10)
    assert handwriting.name == "MNIST by writer"
    assert handwriting.writers.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert handwriting.train.labels.tolist() == list(range(10)) * 3
    assert len(handwriting.test) == 10_000


def test_resnet18_has_the_papers_size() -> None:
    assert sum(parameter.numel() for parameter in ResNet18(64, 10).parameters()) == 11_173_962


def test_the_gradient_of_the_network_is_right_to_rounding() -> None:
    torch.manual_seed(0)
    network = ResNet18(4, 10)
    for block in network.modules():  # a ReLU takes one side or the other of zero, by rounding
        for name, child in list(block.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(block, name, nn.Softplus())
    images, labels = torch.rand(8, 3, 32, 32), torch.arange(8)

    def gradient(module: nn.Module, inputs: Tensor) -> Tensor:
        cross_entropy(module(inputs), labels).backward()  # type: ignore[no-untyped-call]
        return torch.cat([one.grad.flatten().double() for one in module.parameters() if one.grad is not None])

    exact = gradient(deepcopy(network).double(), images.double())
    assert float((gradient(network, images) - exact).norm() / exact.norm()) < 2e-5


def test_statistics_that_are_estimated_anew_do_not_depend_on_those_that_came(data: DataFolder) -> None:
    task = Cifar10(width=4, batch_size=4, loss_samples=5, statistics_samples=40)
    problem, plain = task.load(data, clients=3, seed=1, device=CPU), load("cifar10", data)
    state = problem.initial_state()
    assert state.buffers is not None
    odd = replace(state, buffers=state.buffers * 3 + 1)
    assert problem.evaluate(odd)["test_accuracy_anew"] == problem.evaluate(state)["test_accuracy_anew"]
    assert "test_accuracy_anew" not in plain.evaluate(state)
    after = []
    for one in (problem, plain):  # in the second nothing has been estimated
        with one.objective([0]).round(1, state.buffers) as gradient:
            gradient(state.model)
            after.append(gradient.buffers())
    ours, theirs = after
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours, theirs)


def test_cifar10_from_torchvisions_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def batch(name: str, content: dict[str, object]) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes(), usedforsecurity=False).hexdigest()]

    def images(count: int, brightness: int) -> dict[str, object]:
        return {"data": np.full((count, 3072), brightness, np.uint8), "labels": [n % 10 for n in range(count)]}

    listed = torchvision.datasets.CIFAR10
    monkeypatch.setattr(
        listed, "train_list", [batch("data_batch_1", images(30, 10)), batch("data_batch_2", images(30, 20))]
    )
    monkeypatch.setattr(listed, "test_list", [batch("test_batch", images(20, 90))])
    meta = batch("batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(listed, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    data = DataFolder(tmp_path, may_download=False)
    train, test = read_torchvision_folder(data)
    assert train.pixels.shape == (60, 3, 32, 32)
    assert set(np.unique(train.pixels)) == {10, 20}
    assert set(np.unique(test.pixels)) == {90}
    assert load("cifar10", data).data_name == "CIFAR-10"
    (folder / "data_batch_2").unlink()
    with pytest.raises(UserError, match=r"cifar-10-batches-py is not \(whole\) in"):
        load("cifar10", data)


def test_a_damaged_jpeg_archive_is_named(data: DataFolder, tmp_path: Path) -> None:
    whole = (data.path / "cifar10-jpeg.tar.xz").read_bytes()
    (tmp_path / "cifar10-jpeg.tar.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cifar10-jpeg\.tar\.xz is damaged"):
        load("cifar10", DataFolder(tmp_path, may_download=False))


def test_networks_clip_decay_and_follow_the_loss(data: DataFolder) -> None:
    def gradient(**options: float) -> torch.Tensor:
        task = Cifar10(width=4, batch_size=8, **options)  # type: ignore[arg-type]
        problem = task.load(data, clients=2, seed=0, device=CPU)
        state = problem.initial_state()
        return first_gradient(problem.objective([0]), state.model, state.buffers)

    plain = gradient(weight_decay=0.0, gradient_clip_norm=1e9)
    clipped = gradient(weight_decay=0.0, gradient_clip_norm=0.01)
    assert float(plain.norm()) > 0.01
    assert torch.allclose(clipped, plain * (0.01 / plain.norm()), rtol=1e-4)
    decayed = gradient(weight_decay=0.5, gradient_clip_norm=1e9)
    weights = Cifar10(width=4).load(data, clients=2, seed=0, device=CPU).initial_state().model
    assert torch.allclose(decayed - plain, 0.5 * weights, atol=1e-5)


def test_a_network_learns_its_batch_and_moves_its_buffers(data: DataFolder) -> None:
    problem = Cifar10(width=4, batch_size=16).load(data, clients=1, seed=0, device=CPU)
    state = problem.initial_state()
    objective = problem.objective([0])
    weights = state.model
    with objective.round(1, state.buffers) as gradient:
        for _ in range(100):
            weights = weights - 0.02 * gradient(weights)
        buffers = gradient.buffers()
    assert buffers is not None
    assert state.buffers is not None
    assert not torch.equal(buffers, state.buffers)
    assert objective.loss(weights, buffers) < 0.7 * objective.loss(state.model, state.buffers)


def test_two_clients_with_the_same_images_see_them_in_another_order(
    data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10, "dirichlet_split", lambda labels, clients, **_: [np.arange(len(labels))] * clients)
    problem = load("cifar10", data)
    state = problem.initial_state()
    gradients = [first_gradient(problem.objective([client]), state.model, state.buffers) for client in (0, 0, 1)]
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])


def test_images_are_augmented(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = load("cifar10", data)
    state = problem.initial_state()
    augmented = first_gradient(problem.objective([0]), state.model, state.buffers)
    monkeypatch.setattr(ImageTask, "in_memory", NetworkTask.in_memory)
    problem = load("cifar10", data)
    assert not torch.equal(augmented, first_gradient(problem.objective([0]), state.model, state.buffers))


def test_clients_that_share_a_network_do_not_disturb_each_other(data: DataFolder) -> None:
    problem = load("cifar10", data)
    state = problem.initial_state()
    objectives = [problem.objective([client]) for client in (0, 1)]

    def a_round(objective: Objective) -> list[torch.Tensor]:
        with objective.round(1, state.buffers) as gradient:
            found = [gradient(state.model).clone() for _ in range(3)]
            buffers = gradient.buffers()
        assert buffers is not None
        return [*found, buffers, objective.loss(state.model, state.buffers)]

    alone = [a_round(objective) for objective in objectives]
    with ThreadPoolExecutor(len(objectives)) as threads:
        together = list(threads.map(a_round, objectives))
    for expected, found in zip(alone, together, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_the_round_starts_from_the_buffers_it_is_given(data: DataFolder) -> None:
    problem = load("cifar10", data)
    state = problem.initial_state()
    assert state.buffers is not None
    objective = problem.objective([0])

    def buffers_after_a_batch(given: torch.Tensor) -> torch.Tensor:
        with objective.round(1, given) as gradient:
            gradient(state.model)
            found = gradient.buffers()
        assert found is not None
        return found

    moved = buffers_after_a_batch(state.buffers + 10) - buffers_after_a_batch(state.buffers)
    assert torch.allclose(moved, torch.full_like(moved, 9.0), atol=1e-3)  # BatchNorm keeps nine tenths


def test_the_loss_is_taken_over_all_kinds_of_images(data: DataFolder) -> None:
    problem = Cifar10(width=4, loss_samples=40, concentration=1e6).load(data, clients=1, seed=0, device=CPU)
    objective = problem.objective([0])
    assert isinstance(objective, NetworkObjective)
    chosen = objective.batches.some(40, torch.Generator().manual_seed(0))
    assert {int(label) for _, labels in chosen for label in labels} == set(range(10))


def test_the_simulator_averages_the_buffers(data: DataFolder) -> None:
    experiment = load_experiment("cifar10", ["task.width=4", "task.batch_size=4", "clients=3", "schedule.period=2"])
    problem = experiment.task.load(data, clients=3, seed=0, device=CPU)
    simulation = Simulation(experiment, problem, CPU)
    plan, start = experiment.plan(1), problem.initial_state()
    uploaded = [
        client_round(
            simulation.algorithm,
            cohort.numbered(plan),
            replace(start, model=start.model.clone()),
            cohort.memory,
            cohort.objective,
        )[0].buffers
        for cohort in simulation.cohorts
    ]
    simulation.step()
    mean = torch.stack([buffers for buffers in uploaded if buffers is not None]).mean(0)
    assert simulation.state.buffers is not None
    assert torch.allclose(simulation.state.buffers, mean)
    before = problem.initial_state().buffers
    assert before is not None
    assert not torch.equal(simulation.state.buffers, before)


def test_a_network_without_batchnorm_federates(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cifar10, "ResNet18", lambda width, classes: nn.Sequential(nn.Flatten(), nn.Linear(3072, classes))
    )
    experiment = load_experiment("cifar10", ["clients=3", "schedule.period=2", "rounds=2"])
    problem = experiment.task.load(data, clients=3, seed=0, device=CPU)
    records = list(Simulation(experiment, problem, CPU).rounds())
    assert len(records) == 2


def as_printed(pixels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Mirror and shift pictures one by one, as a step draws it: a seed shall always stand for the same."""
    count, _, side, _ = pixels.shape
    most = side // 8
    mirrored = torch.rand(count, 1, generator=generator) < 1 / 2
    shifts = torch.randint(2 * most + 1, (2, count, 1), generator=generator)[..., 0].T
    padded = torch.nn.functional.pad(pixels, (most,) * 4)
    seen = [picture.flip(-1) if mirror else picture for picture, mirror in zip(padded, mirrored, strict=True)]
    return torch.stack(
        [one[:, down : down + side, right : right + side] for one, (down, right) in zip(seen, shifts, strict=True)]
    )


@pytest.mark.parametrize(("count", "side", "at_once"), [(100, 32, 32), (70, 16, 8), (10, 40, 32)])
def test_pictures_are_mirrored_and_shifted_as_drawn_step_by_step(count: int, side: int, at_once: int) -> None:
    pixels, labels = torch.randint(256, (count, 3, side, side), dtype=torch.uint8), torch.arange(count)
    batches = Pictures((pixels, labels), CPU, batch_size=32, at_once=at_once)
    generator = torch.Generator().manual_seed(5)
    seen = batches.endless(torch.Generator().manual_seed(5))
    for _ in range(3):
        order = torch.randperm(count, generator=generator)
        for chosen in torch.split(order[: count - count % (batches._at_once * batches.per_step)], batches._at_once):
            shown, of = next(seen)
            assert torch.equal(of, chosen)
            assert torch.equal(shown, as_printed(pixels[chosen], generator))
    assert torch.equal(torch.cat([shown for shown, _ in batches.all()]), pixels), "evaluation sees them as they are"
