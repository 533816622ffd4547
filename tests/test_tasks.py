"""What every task promises, checked on each one found, and what each promises of its own."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from common import plugins
from common.data import DataFolder
from common.errors import UserError
from common.networks import ResNet18
from common.task import Problem, Task
from common.tasks.blogfeedback import CONTENT_SHA256, BlogFeedback, content_sha256, read_archive
from common.tasks.cifar10 import Cifar10, flip_and_crop
from common.tasks.femnist import Femnist, read_qmnist
from tests import small_data

NAMES = plugins.available(Task.plugin_package, Task)
CPU = torch.device("cpu")
SMALLER: dict[str, dict[str, int]] = {"cifar10": {"width": 4, "batch_size": 4, "loss_samples": 5}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    folder = tmp_path_factory.mktemp("data")
    small_data.write_all(folder)
    return DataFolder(folder, may_download=False)


def load(name: str, data: DataFolder, clients: int = 3, seed: int = 1) -> Problem:
    task: Task = plugins.find(Task.plugin_package, name, Task)(**SMALLER.get(name, {}))
    return task.load(data, clients=clients, seed=seed, device=CPU)


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
        return torch.stack([one.start_round(1, problem.initial_state().buffers)(weights) for one in objectives])

    assert torch.equal(gradients(first), gradients(again))
    assert not torch.equal(gradients(first), gradients(other))


@pytest.mark.parametrize("name", NAMES)
def test_a_round_can_be_repeated(name: str, data: DataFolder) -> None:
    problem = load(name, data)
    buffers = problem.initial_state().buffers
    objective = problem.objective([1])

    def round_of_gradients(number: int) -> list[torch.Tensor]:
        gradient = objective.start_round(number, buffers)
        return [gradient(nearby(problem)) for _ in range(5)]

    first, repeated = round_of_gradients(4), round_of_gradients(4)
    assert all(torch.equal(one, other) for one, other in zip(first, repeated, strict=True))


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


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_missing_data_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"is not in the data folder {tmp_path}"):
        load(name, DataFolder(tmp_path, may_download=False))


@pytest.mark.parametrize("name", ["digits", "blogfeedback", "femnist"])
def test_a_batch_is_its_clients_and_the_gradient_is_that_of_the_loss(name: str, data: DataFolder) -> None:
    problem = load(name, data)
    weights = nearby(problem, rows=problem.clients)
    batch = problem.objective(range(problem.clients))
    gradients = batch.start_round(1, None)(weights)
    losses = batch.loss(weights, None)
    assert losses.shape == (problem.clients,)
    for client in range(problem.clients):
        alone = problem.objective([client])
        own = alone.start_round(1, None)(weights[client])
        assert own.shape == weights[client].shape
        assert torch.allclose(gradients[client], own, rtol=1e-4, atol=1e-5 * float(own.abs().max()))
        assert torch.allclose(losses[client], alone.loss(weights[client], None), rtol=1e-5)
        leaf = weights[client].clone().requires_grad_()
        alone.loss(leaf, None).backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        assert torch.allclose(own, leaf.grad, rtol=1e-3, atol=1e-4 * float(own.abs().max()))


def test_least_squares_from_thin_factors_is_that_of_the_rows(data: DataFolder) -> None:
    problem = BlogFeedback(validation_fraction=0, ridge=30.0).load(data, clients=4, seed=0, device=CPU)
    train, _ = read_archive(data.path / "BlogFeedback.zip")
    rows = train[train[:, 0] == 2.0]
    low, high = train[:, :280].min(0), train[:, :280].max(0)
    features = np.hstack([(rows[:, :280] - low) / np.where(high > low, high - low, 1), np.ones((len(rows), 1))])
    weights = np.linspace(-1, 1, 281)
    expected = features.T @ (features @ weights - rows[:, 280]) + 30 / 4 * weights
    gradient = problem.objective([2]).start_round(1, None)(torch.tensor(weights).float())
    assert np.allclose(gradient.numpy(), expected, rtol=1e-4, atol=1e-3)


def test_validation_rows_are_held_out(data: DataFolder) -> None:
    everything = BlogFeedback(validation_fraction=0).load(data, clients=4, seed=0, device=CPU)
    most = BlogFeedback(validation_fraction=0.25).load(data, clients=4, seed=0, device=CPU)
    assert set(everything.evaluate(everything.initial_state())) == {"test_r2"}
    assert set(most.evaluate(most.initial_state())) == {"test_r2", "validation_r2"}


@pytest.mark.parametrize("damage", ["truncated", "not a zip", "flipped byte", "other columns", "other files"])
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
    else:
        import zipfile

        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("blogData_train.csv" if damage == "other columns" else "train.csv", "1,2,3\n")
            archive.writestr("blogData_test-1.csv", "1,2,3\n")
    with pytest.raises(UserError, match=r"BlogFeedback\.zip .*download it again"):
        load("blogfeedback", DataFolder(tmp_path, may_download=False))


def test_the_published_blogfeedback_has_554_blogs(real_data: Path) -> None:
    assert content_sha256(real_data / "BlogFeedback.zip") == CONTENT_SHA256
    train, test = read_archive(real_data / "BlogFeedback.zip")
    assert (train.shape, test.shape) == ((52_397, 281), (7_624, 281))
    assert len(np.unique(train[:, :50], axis=0)) == 554
    assert int(0.9 * len(train)) == 47_157


def test_mnist_by_writer_and_femnist_are_told_apart(data: DataFolder, tmp_path: Path) -> None:
    small_data.write_mnist_writers(tmp_path)
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


def test_a_broken_writers_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mnist_writers.npz").write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(UserError, match=r"mnist_writers\.npz is damaged"):
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


def test_cifar10_from_torchvisions_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    with pytest.raises(UserError, match=r"cifar-10-batches-py is not \(whole\) in"):
        load("cifar10", DataFolder(tmp_path, may_download=False))


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
        return problem.objective([0]).start_round(1, state.buffers)(state.model)

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
    gradient = objective.start_round(1, state.buffers)
    weights = state.model
    for _ in range(100):
        weights = weights - 0.02 * gradient(weights)
    buffers = objective.buffers()
    assert buffers is not None
    assert state.buffers is not None
    assert not torch.equal(buffers, state.buffers)
    assert objective.loss(weights, buffers) < 0.7 * objective.loss(state.model, state.buffers)


def test_flip_and_crop_moves_images_by_at_most_four_pixels() -> None:
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    image[:, :, 10, 20] = 200
    generator = torch.Generator().manual_seed(0)
    seen = {tuple(torch.nonzero(flip_and_crop(image, generator)[0, 0])[0].tolist()) for _ in range(400)}
    assert {row for row, _ in seen} == set(range(6, 15))
    assert {column for _, column in seen} == set(range(16, 25)) | set(range(31 - 24, 31 - 15))
