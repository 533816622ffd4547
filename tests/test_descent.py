"""A step with the extra `fast`: in one pass with the next TopK, and the same bits as in several."""

from __future__ import annotations

import _thread
import signal
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import call
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from common.experiment import plugins
from common.learning.objectives.network import is_short
from common.learning.task import ClientFiles
from common.learning.torch_task import Part, TorchTask
from common.randomness import torch_stream
from common.rounds.algorithm import Algorithm, LocalWork, client_round
from common.rounds.objective import FullGradient, Gradient
from common.rounds.state import RoundPlan, ServerState
from common.vectors import select_long

pytest.importorskip("numba")
from common.vectors import descent_fast, machine_code

NAMES = plugins.available(Algorithm.plugin_package)
EXPECTING = ("sparse_proxskip", "sparse_proxskip_arena", "fedcomloc_local")  # the next TopK, where the last one was
STEPS, LENGTH = 6, 100_003
PLAN = RoundPlan(round=1, local_steps=STEPS, probability=0.5, learning_rate=0.1, density=0.1, precision="float32")


@dataclass(frozen=True, kw_only=True)
class Noise(TorchTask):
    """A network with as many weights as it takes, and nothing to learn."""

    weight_decay: float = 0.01

    def module(self) -> nn.Module:
        return nn.Sequential(nn.Linear(256, 300), nn.ReLU(), nn.Linear(300, 10))

    def dataset(self, path: Path, part: Part) -> TensorDataset:
        drawn = torch_stream(0, part)
        return TensorDataset(torch.randn(64, 256, generator=drawn), torch.randint(10, (64,), generator=drawn))


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Let vectors be long enough, and note which steps are one pass."""
    monkeypatch.setattr(select_long, "FAST_FROM", select_long.LONG_FROM)
    noted = Mock(side_effect=descent_fast.descend_and_scan_by_numba)
    monkeypatch.setattr(descent_fast, "descend_and_scan_by_numba", noted)
    return noted


def decays(fused: Mock) -> list[float]:
    return [one.args[4] for one in fused.call_args_list]


def a_round(name: str, **options: float) -> tuple[bytes, bytes]:
    """Return what a client uploads after a few steps, and what its control will be closed with."""
    task = Noise(**options)  # type: ignore[arg-type]
    objective = task.problem([ClientFiles("a", Path())], clients=1, seed=0, device=torch.device("cpu")).objective([0])
    algorithm: Algorithm = plugins.find(Algorithm.plugin_package, name, Algorithm)(learning_rate=0.1, density=0.1)
    state = algorithm.initial_state(ServerState(model=objective.network.weights.clone()))
    memory = algorithm.initial_memory(state)
    if memory.control is not None:
        memory.control.normal_(0, 0.01, generator=torch_stream(0, "control"))
    upload, after = client_round(algorithm, PLAN, state, memory, objective)
    assert after.pending is not None
    assert after.pending.reference is not None
    return upload.model.numpy().tobytes(), after.pending.reference.numpy().tobytes()


@pytest.mark.parametrize("longest", [50.0, 0.1], ids=["short", "to be clipped"])
@pytest.mark.parametrize("name", NAMES)
def test_a_round_has_the_same_bits_without_it(
    name: str, longest: float, fused: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = a_round(name, gradient_clip_norm=longest)
    if name in EXPECTING:
        assert fused.call_count >= STEPS - 2
        assert (max(decays(fused)) > 0) == (longest == 50.0), "what may have to be clipped is whole before"
    monkeypatch.setattr(select_long, "FAST_FROM", sys.maxsize)
    assert a_round(name, gradient_clip_norm=longest) == fast


def random(seed: int) -> Tensor:
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(seed))


def steps(disturb: Callable[[Tensor, Tensor], object], gradient: Gradient) -> bytes:
    """Step and prune, while something happens to the weights or to what was pruned between step and TopK."""
    weights, local = random(1), LocalWork(PLAN, gradient, 0.01 * random(2))
    point = local.pruned(weights, 0.1)
    for _ in range(STEPS):
        weights = local.step(weights, at=point)
        disturb(weights, point)
        point = local.pruned(weights, 0.1)
    return point.numpy().tobytes()


@pytest.mark.parametrize(
    "disturb",
    [
        lambda weights, point: None,
        lambda weights, point: weights.mul_(1.001),
        lambda weights, point: point.zero_(),
        lambda weights, point: weights[::3].zero_(),
    ],
    ids=["nothing", "weights", "point", "most weights"],
)
def test_what_was_found_on_the_way_is_not_used_after_a_change(
    disturb: Callable[[Tensor, Tensor], object], fused: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient = FullGradient(lambda weights: weights + 0.01 * random(3))
    gradient.point = torch.empty(LENGTH)
    fast = steps(disturb, gradient)
    assert fused.called
    monkeypatch.setattr(select_long, "FAST_FROM", sys.maxsize)
    assert steps(disturb, gradient) == fast


def test_what_torch_rounds_twice_is_rounded_twice(fused: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    a_round("sparse_proxskip")
    assert fused.called
    assert set(decays(fused)) == {0.0}, "torch has added it before"


def test_a_gradient_that_may_be_too_long_with_the_decay_is_not_short() -> None:
    gradient = torch.tensor([3.0, 4.0])
    assert is_short(gradient, 10.0, more=4.89)
    assert not is_short(gradient, 10.0, more=4.91)
    assert not is_short(gradient, 10.0, more=float("inf"))
    assert not is_short(gradient, 10.0, more=float("nan"))


def test_who_steps_from_elsewhere_gets_the_whole_gradient(fused: Mock) -> None:
    asked: list[float] = []

    class Decayed(Gradient):
        point = torch.empty(LENGTH)

        def __call__(self, weights: Tensor) -> Tensor:
            return weights + 0.1 * weights

        def undecayed(self, weights: Tensor, norm_at_most: float) -> tuple[Tensor, float]:
            asked.append(norm_at_most / float(weights.norm()))
            return (weights.clone(), 0.1) if norm_at_most < float("inf") else (self(weights), 0.0)

    weights, local = random(1), LocalWork(PLAN, Decayed(), 0.01 * random(2))
    for _ in range(3):
        point = local.pruned(weights, 0.1)
        weights = local.step(weights, at=point)
    assert 1 <= asked[-1] < float("inf"), "the length of what was found on the way is known"
    local.pruned(weights, 0.1)
    local.step(weights, at=random(4))
    local.pruned(weights, 0.1).mul_(2)
    local.step(weights, at=point)
    assert asked[-2:] == [float("inf")] * 2


def test_a_thread_that_fails_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "LEAST_PART", 5)

    def fail(start: int, stop: int) -> None:
        if stop == 100:
            raise ValueError("the last part")

    with pytest.raises(ValueError, match="the last part"):
        machine_code.in_parts(100, fail)


class RungError(Exception):
    """What a signal raises."""


def test_a_signal_that_comes_before_the_first_line_of_a_thread_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def ring(*_: object) -> None:
        raise RungError

    team = machine_code._team()
    if team is None:
        pytest.skip("has no such threads")

    def rung(work: Callable[[object], object], threads: int) -> None:
        calls: list[Callable[[], object]] = [partial(_thread.interrupt_main, signal.SIGALRM), partial(work, None)]
        team(partial(deque, map(call, calls)), 1)  # in C no signal is heard of

    monkeypatch.setattr(machine_code, "LEAST_PART", 5)
    monkeypatch.setattr(machine_code, "_team", lambda: rung)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(RungError):
            machine_code.in_parts(100, lambda *part: part)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_parts_are_one_where_there_are_no_threads_of_that_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "LEAST_PART", 5)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    assert machine_code.in_parts(21, lambda *part: part) == [(0, 5), (5, 10), (10, 15), (15, 21)]
    monkeypatch.setattr(machine_code, "_team", lambda: None)
    assert machine_code.in_parts(21, lambda *part: part) == [(0, 21)]
    torch.set_num_threads(before)
