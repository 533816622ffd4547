"""Rounding to bfloat16 or to a grid: to a neighbour, right on average, repeatable, and of each client its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from common.rounds import rounding
from common.rounds.rounding import LARGEST_ON_GRID, grid_step, rounded, rounded_statistics
from common.rounds.state import Precision, RoundPlan

STEP = 2.0**-7  # as coarse as bfloat16 is between 1 and 2


def plan(
    number: int = 1, precision: Precision = "bfloat16", client: int | tuple[int, ...] = 0, step: float = STEP
) -> RoundPlan:
    return RoundPlan(
        round=number,
        local_steps=1,
        probability=1.0,
        learning_rate=0.1,
        density=1.0,
        precision=precision,
        step=step,
        client=client,
    )


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


@given(arrays("float32", 20, elements=some.floats(-(2.0**15), 2.0**15, width=32)), some.integers(1, 10**9))
def test_a_value_becomes_a_neighbour_on_the_grid(values: Any, number: int) -> None:  # noqa: ANN401
    vector = torch.from_numpy(values)
    result = rounded(plan(number, "grid"), vector)
    steps = result.double() / STEP
    assert torch.equal(steps, steps.round())
    assert bool(((result.double() - vector.double()).abs() < STEP).all())
    assert torch.equal(rounded(plan(number, "grid"), result), result)
    assert not (result.signbit() & (result == 0)).any(), "there is no negative zero on a grid"


def test_what_is_beyond_the_grid_is_clipped() -> None:
    assert rounded(plan(precision="grid", step=0.5), torch.tensor([1e30, -1e30])).tolist() == [
        LARGEST_ON_GRID * 0.5,
        -LARGEST_ON_GRID * 0.5,
    ]


def test_the_step_is_a_power_of_two_below_the_threshold() -> None:
    model = torch.tensor([0.0, 0.3, -8.0, 0.7, 5.0, 0.01, 0.0, 0.0, 0.0, 0.0])
    assert grid_step(model, 0.3, 0) == 0.5  # 0.7 is the third
    assert grid_step(model, 0.3, 2) == 0.125
    assert grid_step(model, 0.4, 0) == 0.25
    assert grid_step(model, 0.5, 0) == 2.0**-7
    assert grid_step(model, 0.6, 2) is None, "there are not so many"
    assert grid_step(torch.tensor([1.0, 1e-30]), 1.0, 0) == 2.0**-12, "so small a value says nothing"
    assert grid_step(torch.full((10,), 1e-40), 0.1, 2) is None, "float32 has no such steps"


def test_float32_is_left_alone() -> None:
    vector = torch.randn(100)
    assert rounded(plan(precision="float32"), vector) is vector


@pytest.mark.parametrize("precision", ["bfloat16", "grid"])
@pytest.mark.parametrize("are_clients", [False, True])
def test_the_mean_over_rounds_or_over_clients_is_the_value(precision: Precision, are_clients: bool) -> None:
    vector = torch.linspace(1, 2, 401) + 0.00123
    plans = [plan(7 if are_clients else one, precision, one if are_clients else 7) for one in range(1, 2001)]
    mean = torch.stack([rounded(one, vector) for one in plans]).double().mean(0)
    nearest = vector.to(torch.bfloat16).double()
    wrong = (mean - vector.double()).abs() / vector.abs()
    assert float(wrong.max()) < 4e-4  # four deviations of a mean of 2,000 steps of at most 2^-7
    assert float((mean - vector.double()).norm()) < 0.05 * float((nearest - vector.double()).norm())


@pytest.mark.parametrize("precision", ["bfloat16", "grid"])
@pytest.mark.parametrize("are_clients", [False, True])
def test_places_and_rounds_and_clients_draw_apart(precision: Precision, are_clients: bool) -> None:
    plans = [plan(7 if are_clients else one, precision, one if are_clients else 7) for one in range(1, 101)]
    up = torch.stack([rounded(one, torch.full((1000,), 1 + 1 / 256)) > 1 for one in plans]).float()
    assert abs(float(up.mean()) - 0.5) < 0.01
    assert float(up.mean(0).sub(0.5).abs().max()) < 0.25  # no place is always rounded the same way
    assert float(up.mean(1).sub(0.5).abs().max()) < 0.08  # no round rounds all the same way


@pytest.mark.parametrize("precision", ["bfloat16", "grid"])
def test_a_client_in_a_batch_draws_as_it_does_alone(precision: Precision) -> None:
    vector, clients = torch.randn(50), (5, 0, 2**32 - 1)
    batch = rounded(plan(7, precision, clients), vector.expand(3, -1))
    alone = [rounded(plan(7, precision, client), vector) for client in clients]
    assert torch.equal(batch, torch.stack(alone))
    assert not alone[0].equal(alone[1])


@pytest.mark.parametrize("precision", ["bfloat16", "grid"])
def test_a_long_vector_is_rounded_as_if_at_once(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(2, 1000)
    expected = rounded(plan(7, precision, (1, 2)), rows)
    monkeypatch.setattr(rounding, "PART", 300)
    assert rounded(plan(7, precision, (1, 2)), rows).equal(expected)


def test_statistics_keep_their_upper_bits_and_are_right_on_average() -> None:
    statistics = torch.rand(10_000) * 1000 + 1
    assert rounded_statistics(plan(precision="float32"), statistics) is statistics
    assert rounded_statistics(plan(), statistics).equal(rounded(plan(), statistics))
    on_a_grid = rounded_statistics(plan(precision="grid", step=64.0), statistics)
    assert not (on_a_grid.view(torch.int32) & (1 << 19) - 1).any()
    ratios = on_a_grid / statistics
    assert float((ratios - 1).abs().max()) <= 1 / 16
    assert float(ratios.mean()) == pytest.approx(1, abs=1e-3)


def test_small_steps_are_not_lost() -> None:
    weights = torch.ones(1000)
    for number in range(1, 101):
        weights = rounded(plan(number), weights + 0.001)  # an eighth of what bfloat16 can tell apart there
    assert abs(float(weights.mean()) - 1.1) < 0.005
