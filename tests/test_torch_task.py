"""Models and data of a user's own: what is trained, in which batches, and what is said of mistakes."""

from __future__ import annotations

import io
import math
import multiprocessing
import random
from collections import UserDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, random_split

from client.app import _reason
from common.codec.payload import encode_state
from common.errors import PublicError, UserError
from common.experiment.experiment import Experiment
from common.experiment.files import experiment_of_text
from common.learning.batches import Batch, examples_in, moved
from common.learning.blueprint import Blueprint, Input
from common.learning.data import DataFolder
from common.learning.network_problem import OwnNetworkProblem
from common.learning.network_task import Outputs
from common.learning.own_code import OwnCodeError
from common.learning.task import ClientFiles, Measured
from common.learning.torch_task import Part, TorchTask
from common.learning.trained_part import TrainedPart
from common.randomness import initialized, seed_all
from common.rounds.state import ServerState
from server.model.exports import exported
from server.model.finished import FinishedModel
from server.simulation.simulation import Simulation
from tests.harness import own_models
from tests.harness.own_models import FineTuned, NextToken, Perceptron, Points, Regression, Streamed, Weighted, points

CPU = torch.device("cpu")
KINDS = ("Points", "Streamed", "Weighted", "Regression", "Segmentation", "NextToken", "FineTuned")


def problem_of(task: TorchTask, client: str = "a", seed: int = 0) -> OwnNetworkProblem:
    return task.problem([ClientFiles(client, Path("nowhere"))], clients=1, seed=seed, device=CPU)


def gradients(task: TorchTask, steps: int = 7, number: int = 1) -> list[Tensor]:
    """Return what a round's gradients are along its way, and the buffers at its end."""
    problem = problem_of(task)
    state = problem.initial_state()
    return gradients_of(problem, state, steps, number)


def gradients_of(problem: OwnNetworkProblem, state: ServerState, steps: int = 7, number: int = 1) -> list[Tensor]:
    weights, found = state.model.clone(), []
    with problem.objective([0]).round(number, state.buffers) as gradient:
        for _ in range(steps):
            found.append(gradient(weights).clone())
            weights = weights - 0.1 * found[-1]
        buffers = gradient.buffers()
    return found if buffers is None else [*found, buffers]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def experiment_of(name: str, **options: object) -> Experiment:
    chosen = "".join(f"  {key}: {value}\n" for key, value in options.items())
    return experiment_of_text(
        f"name: own\nrounds: 12\nclients: 2\ntask:\n  name: tests.harness.own_models:{name}\n{chosen}"
        "algorithm: {name: sparse_proxskip, density: 0.6, learning_rate: 0.05}\nschedule: {period: 6}\n"
    )


def simulated(experiment: Experiment, folder: Path) -> Simulation:
    for client in range(experiment.clients):
        (folder / f"client-{client}").mkdir(exist_ok=True)
    return Simulation(experiment, experiment.load(DataFolder(folder, may_download=False), CPU), CPU)


@pytest.mark.parametrize("name", KINDS)
def test_any_module_learns_by_its_own_loss_and_is_measured_by_its_own_metrics(name: str, tmp_path: Path) -> None:
    simulation = simulated(experiment_of(name), tmp_path)
    records = list(simulation.rounds())
    assert set(getattr(own_models, name).metric_names) < set(records[-1].metrics)
    assert records[-1].metrics["train_loss"] < 0.9 * records[0].metrics["train_loss"]
    headline = simulation.problem.metric
    assert records[-1].metrics[headline] > records[0].metrics[headline]


@pytest.mark.parametrize("name", KINDS)
def test_a_round_repeats_its_bits_whatever_was_drawn_in_between(name: str) -> None:
    task = getattr(own_models, name)()
    problem = problem_of(task)
    state = problem.initial_state()
    first = gradients_of(problem, state)
    torch.rand(3)
    other = gradients_of(problem, state, number=2)
    problem.evaluate(state)
    assert same(first, gradients_of(problem, state))
    assert same(first, gradients(task))  # made anew, as after a restart
    assert not same(first, other)


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.gauss(0, 1)


@pytest.mark.parametrize("task", [Points(), Streamed()])
def test_a_round_leaves_the_global_random_numbers_alone(task: TorchTask) -> None:
    seed_all(5)
    expected = drawn()
    seed_all(5)
    gradients(task)
    assert drawn() == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Points", "Streamed"])
def test_worker_processes_read_the_same_batches(name: str) -> None:
    task = getattr(own_models, name)()
    alone, next_round = (gradients(task, 11, number) for number in (1, 2))
    for workers in (1, 2):
        problem = problem_of(replace(task, loader_workers=workers))
        state = problem.initial_state()
        assert same(alone, gradients_of(problem, state, 11))
        problem.evaluate(state)
        assert same(next_round, gradients_of(problem, state, 11, 2))  # by the same processes, in mid-epoch


@pytest.mark.slow
def test_a_reader_that_dies_fails_one_round_and_is_replaced_in_the_next() -> None:
    problem = problem_of(Points(loader_workers=1))
    state = problem.initial_state()
    first = gradients_of(problem, state)
    (reader,) = multiprocessing.active_children()
    reader.kill()
    reader.join()
    with pytest.raises(OwnCodeError, match=r"^Points.dataset\(train\) of a: RuntimeError: DataLoader worker .* exited"):
        gradients_of(problem, state)
    assert same(first, gradients_of(problem, state))


@pytest.mark.slow
def test_clients_that_train_in_turns_have_one_set_of_readers() -> None:
    parts = [ClientFiles(name, Path("nowhere")) for name in ("a", "b", "c")]
    problem = Points(loader_workers=1).problem(parts, clients=3, seed=0, device=CPU)
    state = problem.initial_state()
    for client in range(3):
        with problem.objective([client]).round(1, state.buffers) as gradient:
            gradient(state.model)
        del gradient
        assert len(multiprocessing.active_children()) == 1
    del problem
    assert not multiprocessing.active_children()


def test_a_client_without_test_examples_is_measured_by_none() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Untested(Points):
        def dataset(self, path: Path, part: Part) -> Dataset[Any]:
            return super().dataset(path, part) if part == "train" else cast("Dataset[Any]", [])

    problem = problem_of(Untested())
    assert problem.measure(problem.initial_state()) == [Measured(0, {})]


def test_a_stream_of_nothing_has_no_loss() -> None:
    problem = problem_of(Mistaken(mistake="empty stream"))
    with pytest.raises(OwnCodeError, match=r"^Mistaken.dataset\(train\) of a: it ends before a batch of 8 examples$"):
        problem.objective([0]).loss(problem.initial_state().model, None)


class Halves(Points):
    """Splits its data by all three sources of random numbers."""

    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        halves = random_split(cast("Dataset[Any]", range(20)), [0.5, 0.5])
        mixed = [(*drawn(), place) for place in halves[part == "test"].indices]
        return cast("Dataset[Any]", mixed)


def halves(client: str = "a", seed: int = 0) -> tuple[list[Any], list[Any]]:
    task, files = Halves(), ClientFiles(client, Path("nowhere"))
    train, test = (cast("list[Any]", task._made(files, part, seed)) for part in ("train", "test"))
    return train, test


def test_a_random_split_is_the_same_for_both_parts_and_after_a_restart() -> None:
    train, test = halves()
    assert {place for *_, place in train + test} == set(range(20))
    assert [one[:3] for one in train] == [one[:3] for one in test]
    drawn()
    assert halves() == (train, test)
    assert halves("b") != (train, test) != halves(seed=1)


def test_a_stream_is_told_another_epoch_each_time() -> None:
    problem = problem_of(Streamed(batch_size=40))  # all of it at once: only the order and the noise differ
    state = problem.initial_state()
    with problem.objective([0]).round(1, state.buffers) as gradient:
        first, second = gradient(state.model).clone(), gradient(state.model).clone()
    assert not torch.equal(first, second)


def test_tensors_in_memory_and_the_loader_draw_the_same_batches() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Listed(Weighted):
        def dataset(self, path: Path, part: Part) -> Dataset[Any]:
            inputs, kinds = points(40)
            return cast("Dataset[Any]", [(inputs[place], kinds[place]) for place in range(40)])

    assert same(gradients(Weighted()), gradients(Listed()))


@pytest.mark.parametrize("name", ["Regression", "Segmentation", "NextToken"])
def test_micro_batches_give_the_gradient_of_the_whole_batch(name: str) -> None:
    whole, parts = (gradients(getattr(own_models, name)(micro_batch=size), steps=3) for size in (0, 2))
    for one, other in zip(whole, parts, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_micro_batch_must_divide_the_batch() -> None:
    with pytest.raises(UserError, match=r"task: micro_batch = 3 does not divide batch_size = 8"):
        experiment_of("Points", micro_batch=3)


def test_autocast_computes_in_bfloat16_and_trains_in_float32() -> None:
    exact, rough = (gradients(Regression(autocast=kind), steps=1)[0] for kind in ("none", "bfloat16"))
    assert rough.dtype == torch.float32
    assert not torch.equal(exact, rough)
    assert torch.allclose(exact, rough, rtol=0.1, atol=0.02 * float(exact.abs().max()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own parts
def test_a_compiled_module_gives_the_same_gradients() -> None:
    for one, other in zip(gradients(Regression()), gradients(Regression(compile=True)), strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)


def test_only_what_is_trained_travels_and_persistent_floats_beside_it() -> None:
    problem = problem_of(FineTuned())
    state = problem.initial_state()
    assert len(state.model) == 8 + 8 + 8 * 3 + 3  # BatchNorm and the last layer
    assert state.buffers is not None
    assert len(state.buffers) == 8 + 8
    saved = problem.tensors(state)
    module = Perceptron()
    found = module.load_state_dict(saved, strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) == {"first.weight", "first.bias", "positions"}


def test_tied_parameters_are_one_in_the_vector_and_both_in_the_file() -> None:
    task = NextToken()
    problem = problem_of(task)
    state = problem.initial_state()
    assert len(state.model) == 7 * 7 + 7 * 7 + 7
    task.module().load_state_dict(problem.tensors(state))


def test_the_digest_tells_another_base_and_is_empty_where_all_travels() -> None:
    assert problem_of(Weighted()).frozen_digest() == ""
    frozen = problem_of(FineTuned()).frozen_digest()
    assert frozen == problem_of(FineTuned()).frozen_digest()
    assert frozen != problem_of(FineTuned(base=1.5)).frozen_digest()
    trained = problem_of(FineTuned())
    gradients_of(trained, trained.initial_state())
    assert trained.frozen_digest() == frozen  # what is frozen stays as it was


def test_the_change_starts_at_zero_and_needs_the_same_first_weights_everywhere() -> None:
    problem = problem_of(Regression(sparse="change"))
    state = problem.initial_state()
    assert not state.model.any()
    assert len(encode_state(state)) < 30 < len(encode_state(problem_of(Regression()).initial_state()))
    assert problem.frozen_digest() != problem_of(Regression(sparse="change"), seed=1).frozen_digest()


def test_the_change_is_trained_measured_and_saved_on_top_of_the_first_model() -> None:
    whole, change = problem_of(Regression()), problem_of(Regression(sparse="change"))
    start, zero = whole.initial_state(), change.initial_state()
    assert same(gradients_of(whole, start, steps=1), gradients_of(change, zero, steps=1))
    moved_by = torch.full_like(start.model, 0.25)
    here, there = ServerState(model=start.model + moved_by), ServerState(model=moved_by)
    assert change.evaluate(there) == whole.evaluate(here)
    assert change.objective([0]).loss(there.model, None) == whole.objective([0]).loss(here.model, None)
    for name, tensor in change.tensors(there).items():
        assert torch.equal(tensor, whole.tensors(here)[name])
    assert change.initial_state().model.count_nonzero() == 0  # also when the module has been used


@pytest.mark.parametrize("sparse", ["model", "change"])
def test_the_density_is_that_of_what_is_sparse(sparse: str, tmp_path: Path) -> None:
    simulation = simulated(experiment_of("Regression", sparse=sparse), tmp_path)
    list(simulation.rounds())
    kept = simulation.kept()
    assert int(kept.model.count_nonzero()) == round(0.6 * len(kept.model))
    saved = torch.cat([one.flatten() for one in simulation.problem.tensors(kept).values()])
    assert (int(saved.count_nonzero()) == len(saved)) == (sparse == "change")


@dataclass(frozen=True, kw_only=True)
class Described(FineTuned):
    """One that says how to predict."""

    def blueprint(self) -> Blueprint:
        inputs = (Input(name="inputs", example=torch.zeros(2, 4)),)
        return Blueprint(module=self.module(), inputs=inputs, scaling="none", classes=("a", "b", "c"))


def test_a_model_is_exported_by_its_names_and_predicts_where_the_task_says_how(tmp_path: Path) -> None:
    experiment = experiment_of("FineTuned")
    simulation = simulated(experiment, tmp_path)
    (_, *_, last) = simulation.rounds()
    model = FinishedModel.of(experiment, simulation.problem, simulation.kept(), last)
    saved = torch.load(io.BytesIO(exported(model, "torch")), weights_only=True)
    assert set(saved) == set(model.tensors)
    assert len(exported(model, "sparse"))
    with pytest.raises(UserError, match="own_models:FineTuned does not say how to predict: it has no blueprint"):
        exported(model, "onnx")
    described = replace(model, experiment=replace(experiment, task=Described()))
    predictor, _ = described.predictor()
    inputs, _ = points(10)
    module = initialized(FineTuned().module, experiment.seed)
    module.load_state_dict(saved, strict=False)
    assert torch.equal(predictor(inputs), module.eval()(inputs).softmax(1))
    stranger = replace(described, tensors={"other": torch.zeros(1), **model.tensors})
    with pytest.raises(UserError, match=r"the tensors are not those of the task .*: see other"):
        stranger.predictor()
    lacking = replace(described, tensors={k: v for k, v in model.tensors.items() if k != "last.bias"})
    with pytest.raises(UserError, match=r"the tensors are not those of the task .*: see last.bias"):
        lacking.predictor()


class Pair(NamedTuple):
    inputs: Tensor
    labels: Tensor


def test_batches_of_any_structure_are_moved_and_counted() -> None:
    batch = {
        "pair": Pair(torch.zeros(3, 2), torch.zeros(3)),
        "names": ["x", "y", "z"],
        "more": [UserDict(a=torch.ones(3))],
    }
    found = moved(batch, torch.device("meta"))
    assert isinstance(found["pair"], Pair)
    assert found["pair"].labels.device.type == "meta"
    assert found["names"] == ["x", "y", "z"]
    assert type(found["more"][0]) is dict
    assert examples_in(batch) == 3
    assert examples_in({"names": ["x"]}) == 0


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, place: int) -> Tensor:
        raise KeyError("/srv/secret/slide.tif")


class Ended(Broken):
    def __getitem__(self, place: int) -> Tensor:
        return cast(Tensor, next(iter(())))


MISTAKEN_DATA = {
    "item": Broken(),
    "end in an item": Ended(),
    "empty": TensorDataset(torch.empty(0, 4), torch.empty(0)),
    "empty list": [],
    "no tensors": ["slide"] * 10,
    "tensors of nothing": TensorDataset(),
    "short stream": own_models.PointStream(3),
    "empty stream": own_models.PointStream(0),
}


MISTAKEN_METRICS: dict[str, Any] = {
    "metrics": {"other": torch.ones(())},
    "metrics of a number": 0.5,
    "metrics of an example": {"test_accuracy": torch.ones(8)},
    "metrics of text": {"test_accuracy": "good"},
    "metrics of no number": {"test_accuracy": torch.tensor(float("nan"))},
}


@dataclass(frozen=True, kw_only=True)
class Mistaken(Points):
    """A task with one mistake."""

    mistake: str = ""

    def module(self) -> nn.Module:
        match self.mistake:
            case "nothing trained":
                return Perceptron().requires_grad_(False)
            case "float64":
                return Perceptron().double()
            case "module":
                raise FileNotFoundError("/srv/secret/weights.pt")
        return Perceptron()

    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        if self.mistake == "dataset":
            raise FileNotFoundError("/srv/secret/slides")
        if self.mistake in MISTAKEN_DATA:
            return cast("Dataset[Any]", MISTAKEN_DATA[self.mistake])
        return super().dataset(path, part)

    def collate(self, examples: list[Any]) -> Batch:
        return next(iter(())) if self.mistake == "end in collate" else super().collate(examples)

    def loss(self, outputs: Outputs, batch: Batch) -> Tensor:
        if self.mistake == "loss":
            return nn.functional.cross_entropy(outputs, self.labels(batch), reduction="none")
        return super().loss(outputs, batch)

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        return MISTAKEN_METRICS.get(self.mistake) or super().metrics(outputs, batch)

    def forward(self, module: nn.Module, batch: Batch) -> Outputs:
        return module(batch["pixels"]) if self.mistake == "forward" else super().forward(module, batch)

    def transform(self, batch: Batch, generator: torch.Generator | None) -> Batch:
        return batch["pixels"] if self.mistake == "transform" else batch


SAID = {
    "nothing trained": r"no parameter that requires a gradient: there is nothing to train",
    "float64": r"trains first.weight, which is float64: make it float32",
    "module": r"^Mistaken.module: FileNotFoundError: /srv/secret/weights.pt \(test_torch_task.py, line \d+\)$",
    "dataset": r"^Mistaken.dataset\(train\) of a: FileNotFoundError: /srv/secret/slides \(test_torch_task.py, ",
    "item": r"^Mistaken.dataset\(train\) of a: KeyError: '/srv/secret/slide.tif' \(test_torch_task.py, line \d+\)$",
    "empty": r"^Mistaken.dataset\(train\) of a: it is empty: there is nothing to train on$",
    "empty list": r"^Mistaken.dataset\(train\) of a: it is empty",
    "no tensors": r"^Mistaken.dataset\(train\) of a: a batch has no tensor in it",
    "short stream": r"^Mistaken.dataset\(train\) of a: it ends before a batch of 8 examples$",
    "end in an item": r"^Mistaken.dataset\(train\) of a: RuntimeError: it raises StopIteration \(test_torch_task.py, ",
    "end in collate": r"^Mistaken.dataset\(train\) of a: RuntimeError: it raises StopIteration \(test_torch_task.py, ",
    "tensors of nothing": r"^Mistaken.dataset\(train\) of a: its TensorDataset has no tensors$",
    "empty stream": r"^Mistaken.dataset\(train\) of a: it ends before a batch of 8 examples$",
    "loss": r"^Mistaken.loss: it must return one number as a tensor, not \[8\] numbers$",
    "metrics": r"^Mistaken.metrics: it returns other, where metric_names declares test_accuracy$",
    "metrics of a number": r"^Mistaken.metrics: it must return a dict of numbers, not float$",
    "metrics of an example": r"^Mistaken.metrics: test_accuracy must be one number, .*, not \[8\] numbers$",
    "metrics of text": r"^Mistaken.metrics: test_accuracy must be one number, .*, not str$",
    "metrics of no number": r"^Mistaken.metrics: test_accuracy is not a number, though all .* is finite$",
    "forward": r"^Mistaken.forward: KeyError: 'pixels' \(test_torch_task.py, line \d+\)$",
    "transform": r"^Mistaken.transform: KeyError: 'pixels' \(test_torch_task.py, line \d+\)$",
}


@pytest.mark.parametrize("mistake", SAID)
def test_a_mistake_in_a_users_code_is_one_line_of_which_the_server_hears_no_file(
    mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task, said = Mistaken(mistake=mistake), list[str]()

    def use() -> None:
        gradients(task)
        problem_of(task).evaluate(problem_of(task).initial_state())

    with pytest.raises(UserError, match=SAID[mistake]) as caught:
        use()
    reason = _reason(caught.value, said.append)
    assert "secret" not in reason
    assert isinstance(caught.value, PublicError) or said == [str(caught.value)]
    assert ("Traceback" in capsys.readouterr().err) <= (caught.value.__cause__ is not None)


def test_metrics_may_be_numbers_of_numpy() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Counted(Points):
        def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, Any]:
            return {"test_accuracy": np.float32(len(outputs))}

    problem = problem_of(Counted())
    assert problem.evaluate(problem.initial_state()) == {"test_accuracy": 1.0}


def test_metrics_are_not_blamed_for_a_model_that_has_diverged() -> None:
    problem = problem_of(Regression())
    state = problem.initial_state()
    state.model.fill_(float("nan"))
    (measured,) = problem.measure(state)
    assert math.isnan(measured.means["test_squared_error"])


def test_a_trained_part_without_buffers_has_none() -> None:
    assert TrainedPart(nn.Linear(2, 1), CPU).read_buffers() is None


class MaximalNorm(nn.Linear):
    """Moves on to another tensor for its weight, as some networks of the literature do."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.5)
        return super().forward(inputs)


class MovingMean(nn.Linear):
    """Moves on to another tensor for its buffer."""

    mean: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("mean", torch.zeros(inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        return super().forward(inputs - self.mean)


class Forgetful(nn.Linear):
    """Forgets its gradients."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.zero_grad()
        return super().forward(inputs)


class Shared(nn.Sequential):
    """Has one module, and so its statistics, at two places."""

    def __init__(self, inputs: int, outputs: int) -> None:
        norm = nn.BatchNorm1d(inputs, momentum=None)  # whose momentum depends on how many steps there were
        super().__init__(norm, nn.Linear(inputs, inputs), norm, nn.Linear(inputs, outputs))


class Counting(nn.Linear):
    """Counts its steps, in another tensor each time, and learns less from each."""

    steps: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.steps = self.steps + 1
        return super().forward(inputs) / (1 + self.steps)


ODD = (MaximalNorm, MovingMean, Forgetful, Shared, Counting)


@dataclass(frozen=True, kw_only=True)
class Odd(Points):
    """A module that does what few do."""

    batch_size: int = 64
    kind: int = 0

    def module(self) -> nn.Module:
        return ODD[self.kind](4, 3)

    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        return TensorDataset(*points(64))


@pytest.mark.parametrize("kind", range(len(ODD)))
def test_a_module_that_moves_on_to_other_tensors_is_trained_as_by_torch_alone(kind: int) -> None:
    task = Odd(kind=kind)
    problem = problem_of(task)
    state, steps = problem.initial_state(), 5
    weights = state.model.clone()
    with problem.objective([0]).round(1, state.buffers) as gradient:
        for _ in range(steps):
            weights = weights - 0.1 * gradient(weights)
        ours = problem.tensors(ServerState(model=weights, buffers=gradient.buffers()))
    alone = initialized(task.module, 0)
    inputs, labels = points(64)
    for _ in range(steps):
        before = [parameter.detach().clone() for parameter in alone.parameters()]
        alone.zero_grad()
        nn.functional.cross_entropy(alone(inputs), labels).backward()  # type: ignore[no-untyped-call]
        for parameter, one in zip(alone.parameters(), before, strict=True):
            assert parameter.grad is not None
            parameter.data = one - 0.1 * parameter.grad  # from where it was: what `forward` does to it does not last
    counters = ("num_batches_tracked", "steps")  # which are not sent
    expected = {name: one for name, one in alone.state_dict().items() if not name.endswith(counters)}
    assert expected.keys() <= ours.keys()
    for name, tensor in expected.items():
        assert torch.allclose(ours[name], tensor, atol=1e-6), name


@pytest.mark.parametrize("kind", range(len(ODD)))
def test_a_round_finds_an_odd_module_as_the_last_one_did(kind: int) -> None:
    problem = problem_of(Odd(kind=kind))
    state = problem.initial_state()
    assert same(gradients_of(problem, state), gradients_of(problem, state))


@dataclass(frozen=True, kw_only=True)
class Autoencoder(Points):
    """Batches of one tensor."""

    def module(self) -> nn.Module:
        return nn.Linear(4, 4)

    def loss(self, outputs: Outputs, batch: Batch) -> Tensor:
        assert outputs.shape == batch.shape
        return nn.functional.mse_loss(outputs, batch)

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        return {"test_accuracy": -(outputs - batch).square().mean(1).sum()}

    def dataset(self, path: Path, part: Part) -> Dataset[Any]:
        return cast("Dataset[Any]", list(points(20)[0]))


def test_a_batch_may_be_one_tensor() -> None:
    problem = problem_of(Autoencoder())
    assert len(gradients_of(problem, problem.initial_state(), steps=2)) == 2
    (measured,) = problem.measure(problem.initial_state())
    assert measured.examples == 20


def test_examples_are_counted_by_their_labels() -> None:
    task = Points()
    assert task.examples_in({"step": torch.tensor(3), "inputs": torch.zeros(20, 8), "labels": torch.zeros(8)}) == 8
    assert task.examples_in((torch.zeros(20, 8), torch.zeros(8))) == 8
    assert task.examples_in({"inputs": torch.zeros(5, 2)}) == 5


@pytest.mark.parametrize("names", [(), ("train_loss",)])
def test_metrics_have_names_that_are_free(names: tuple[str, ...]) -> None:
    kind = type("Named", (Points,), {"metric_names": names})
    with pytest.raises(ValueError, match="metric_names"):
        kind()
