"""Rounding to bfloat16: to a neighbour, right on average, the same for everybody."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from common.rounds.rounding import rounded
from common.rounds.state import Precision, RoundPlan


def plan(number: int = 1, precision: Precision = "bfloat16") -> RoundPlan:
    return RoundPlan(round=number, local_steps=1, probability=1.0, learning_rate=0.1, density=1.0, precision=precision)


@given(arrays("float32", 20, elements=some.floats(-(2.0**100), 2.0**100, width=32)), some.integers(1, 10**9))
def test_a_value_becomes_one_of_its_two_neighbours(values: Any, number: int) -> None:  # noqa: ANN401
    vector = torch.from_numpy(values)
    result = rounded(plan(number), vector)
    assert torch.equal(result, result.to(torch.bfloat16).float())  # they are bfloat16
    below = (vector.view(torch.int32) & -65536).view(torch.float32)  # towards zero
    above = ((vector.view(torch.int32) & -65536) + 65536).view(torch.float32)
    assert torch.all((result == below) | (result == above))
    exact = vector.to(torch.bfloat16).float()
    assert torch.equal(rounded(plan(number), exact), exact)  # and stay what they are


def test_float32_is_left_alone() -> None:
    vector = torch.randn(100)
    assert rounded(plan(precision="float32"), vector) is vector


def test_the_mean_over_rounds_is_the_value() -> None:
    vector = torch.linspace(-2, 2, 401) + 0.00123
    mean = torch.stack([rounded(plan(number), vector) for number in range(1, 2001)]).double().mean(0)
    nearest = vector.to(torch.bfloat16).double()
    wrong = (mean - vector.double()).abs() / vector.abs()
    assert float(wrong.max()) < 4e-4  # four deviations of a mean of 2,000 steps of at most 2^-7
    assert float((mean - vector.double()).norm()) < 0.05 * float((nearest - vector.double()).norm())


def test_places_and_rounds_draw_apart() -> None:
    up = torch.stack([rounded(plan(number), torch.full((1000,), 1 + 1 / 256)) > 1 for number in range(1, 101)]).float()
    assert abs(float(up.mean()) - 0.5) < 0.01
    assert float(up.mean(0).sub(0.5).abs().max()) < 0.25  # no place is always rounded the same way
    assert float(up.mean(1).sub(0.5).abs().max()) < 0.08  # no round rounds all the same way


def test_all_clients_of_a_batch_draw_the_same() -> None:
    vector = torch.randn(50)
    batch = rounded(plan(7), vector.expand(3, -1))
    assert all(torch.equal(row, rounded(plan(7), vector)) for row in batch)


def test_small_steps_are_not_lost() -> None:
    weights = torch.ones(1000)
    for number in range(1, 101):
        weights = rounded(plan(number), weights + 0.001)  # an eighth of what bfloat16 can tell apart there
    assert abs(float(weights.mean()) - 1.1) < 0.005
