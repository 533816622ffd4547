"""The rule for a device, checked without one: local steps never wait for it, send it nothing, and ask it little."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from common.experiment import plugins
from common.learning.images import ImageTask
from common.learning.networks import ResNet18
from common.learning.objectives.network import NetworkObjective, clipped, clipped_on_device
from common.learning.task import ClientFiles
from common.learning.torch_task import Part, TorchTask
from common.rounds.algorithm import Algorithm, client_round
from common.rounds.state import Precision, RoundPlan, ServerState
from tests.harness.device_watch import META, DeviceWatch, watched

NAMES = plugins.available(Algorithm.plugin_package)
MOST_OPERATORS = 25  # of a step beyond forward and backward, TopK included
STEPS_OF_AN_EPOCH = 2
MOST_AS_AN_EPOCH_BEGINS = 40  # more: where all of its pictures come from is drawn at once


@dataclass(frozen=True, kw_only=True)
class Pictures(TorchTask):
    """A ResNet18 on pictures that are not there."""

    width: int = 8
    weight_decay: float = 1e-4

    def module(self) -> nn.Module:
        return ResNet18(self.width, 10)

    def dataset(self, path: Path, part: Part) -> TensorDataset:
        return TensorDataset(torch.zeros(64, 3, 32, 32), torch.zeros(64, dtype=torch.int64))


@dataclass(frozen=True, kw_only=True)
class AugmentedPictures(ImageTask, Pictures):
    """The same as bytes, which are mirrored, shifted and scaled in every step."""

    def dataset(self, path: Path, part: Part) -> TensorDataset:
        return TensorDataset(torch.zeros(64, 3, 32, 32, dtype=torch.uint8), torch.zeros(64, dtype=torch.int64))


def objective_of(task: TorchTask) -> NetworkObjective:
    return task.problem([ClientFiles("a", Path())], clients=1, seed=0, device=META).objective([0])


def run_round(name: str, objective: NetworkObjective, steps: int, precision: Precision = "float32") -> None:
    algorithm: Algorithm = plugins.find(Algorithm.plugin_package, name, Algorithm)(learning_rate=0.1, density=0.1)
    plan = RoundPlan(round=1, local_steps=steps, probability=0.5, learning_rate=0.1, density=0.1, precision=precision)
    network = objective.network
    state = algorithm.initial_state(ServerState(model=network.weights.clone(), buffers=network.read_buffers()))
    upload, memory = client_round(algorithm, plan, state, algorithm.initial_memory(state), objective)
    settled = algorithm.settle(memory, state.model)
    assert upload.model.device == META
    assert settled.control is None or settled.control.device == META


def of_a_step(name: str, objective: NetworkObjective, *, after: int = 1) -> DeviceWatch:
    """Return what one more step asks for, beyond forward and backward."""
    run_round(name, objective, 1)  # constants of a task go to the device once, and stay
    one, two = (watched(partial(run_round, name, objective, steps)) for steps in (after, after + 1))
    inputs, labels = torch.zeros(32, 3, 32, 32, device=META), torch.zeros(32, dtype=torch.int64, device=META)
    bare = watched(lambda: nn.functional.cross_entropy(objective.network.module(inputs), labels).backward())  # type: ignore[no-untyped-call]
    return two - one - bare


@pytest.mark.parametrize("name", NAMES)
def test_a_step_waits_for_nothing_sends_nothing_and_asks_for_few_operators(name: str) -> None:
    step = of_a_step(name, objective_of(Pictures()))
    assert not step.sent
    assert step.operators.total() <= MOST_OPERATORS, step.operators


@pytest.mark.parametrize("name", ["sparse_proxskip", "hybrid"])
def test_so_does_one_with_augmentation(name: str) -> None:
    step = of_a_step(name, objective_of(AugmentedPictures()))
    assert not step.sent
    assert step.operators.total() <= MOST_OPERATORS, step.operators


def test_an_epoch_draws_on_the_device() -> None:
    objective = objective_of(AugmentedPictures())
    inner, first = (of_a_step("sparse_proxskip", objective, after=steps) for steps in (1, STEPS_OF_AN_EPOCH))
    assert not first.sent
    assert (first - inner).operators.total() <= MOST_AS_AN_EPOCH_BEGINS, first.operators


@pytest.mark.parametrize("name", ["sparse_proxskip", "hybrid", "proxskip", "fediht"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "grid"])
def test_a_whole_round_of_the_original_width_waits_for_nothing(name: str, precision: Precision) -> None:
    run_round(name, objective_of(Pictures(width=64)), 2, precision)


@pytest.mark.parametrize("longest", [0.5, 1e3])
def test_a_device_clips_as_a_cpu_does(longest: float) -> None:
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    there, here = clipped_on_device(gradient.clone(), longest), clipped(gradient.clone(), longest)
    assert torch.allclose(there, here, rtol=1e-6)
    assert torch.equal(there, gradient) == (longest == 1e3)
    assert not clipped_on_device(torch.tensor([1.0, torch.nan]), longest).isfinite().all()


def test_the_watch_sees_what_the_host_sends() -> None:
    there, here = torch.zeros(4, device=META), torch.arange(2)
    assert watched(lambda: there[here]).sent
    assert watched(lambda: here.to(META)).sent
    assert watched(lambda: torch.tensor([1.0, 2.0], device=META)).sent
    quiet = watched(lambda: there.view(2, 2).add_(1))
    assert not quiet.sent
    assert quiet.operators == {"add_": 1}
    with pytest.raises(RuntimeError, match="meta"):
        watched(lambda: float(there.sum()))
