"""The rule for a device, checked without one: local steps never wait for it, send it nothing, and ask it little."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from common.experiment import plugins
from common.learning.networks import ResNet18
from common.rounds.algorithm import Algorithm, client_round
from common.rounds.objective import Gradient, Objective
from common.rounds.state import Precision, RoundPlan, ServerState
from common.vectors.flatten import Layout
from tests.harness.device_watch import META, watched

NAMES = plugins.available(Algorithm.plugin_package)
MOST_OPERATORS = 25  # of a step beyond forward and backward, TopK included
PRUNE_TWICE = {"hybrid": 12}  # in a step: what its second TopK takes


class Pictures(Objective):
    def __init__(self, width: int) -> None:
        self.module = ResNet18(width, 10).to(META)
        layout, parameters = Layout.of(self.module.named_parameters()), dict(self.module.named_parameters())
        self.weights = layout.flatten({name: one.detach() for name, one in parameters.items()})
        self.gradient = torch.zeros_like(self.weights)
        views, gradients = layout.unflatten(self.weights), layout.unflatten(self.gradient)
        for name, parameter in parameters.items():
            parameter.data, parameter.grad = views[name], gradients[name]
        self.images, self.labels = torch.zeros(32, 3, 32, 32, device=META), torch.zeros(32, device=META).long()

    @contextmanager
    def round(self, number: int, buffers: Tensor | None) -> Iterator[Gradient]:
        yield BareGradient(self)

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        raise NotImplementedError

    def backward(self) -> None:
        nn.functional.cross_entropy(self.module(self.images), self.labels).backward()  # type: ignore[no-untyped-call]


class BareGradient(Gradient):
    def __init__(self, objective: Pictures) -> None:
        self.objective = objective
        self.point = objective.weights

    def __call__(self, weights: Tensor) -> Tensor:
        if weights is not self.point:
            self.objective.weights.copy_(weights)
        gradient = self.objective.gradient.zero_()
        self.objective.backward()
        return gradient


def run_round(name: str, objective: Pictures, steps: int, precision: Precision = "float32") -> None:
    algorithm: Algorithm = plugins.find(Algorithm.plugin_package, name, Algorithm)(learning_rate=0.1, density=0.1)
    plan = RoundPlan(round=1, local_steps=steps, probability=0.5, learning_rate=0.1, density=0.1, precision=precision)
    state = algorithm.initial_state(ServerState(model=objective.weights.clone()))
    upload, memory = client_round(algorithm, plan, state, algorithm.initial_memory(state), objective)
    settled = algorithm.settle(memory, state.model)
    assert upload.model.device == META
    assert settled.control is None or settled.control.device == META


@pytest.mark.parametrize("name", NAMES)
def test_a_step_waits_for_nothing_sends_nothing_and_asks_for_few_operators(name: str) -> None:
    objective = Pictures(width=8)
    step = watched(lambda: run_round(name, objective, 2)) - watched(lambda: run_round(name, objective, 1))
    beyond = step - watched(objective.backward)
    assert not beyond.sent
    assert beyond.operators.total() <= MOST_OPERATORS + PRUNE_TWICE.get(name, 0), beyond.operators


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
