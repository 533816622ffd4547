import numpy as np
import pytest

from common.rounds.schedule import Schedule, local_steps


def test_period_communicates_after_the_first_step_and_then_every_period() -> None:
    steps = [local_steps(Schedule(kind="period", period=4), 0, number) for number in range(1, 6)]
    assert steps == [1, 4, 4, 4, 4]


def test_period_takes_the_floor_of_one_over_p() -> None:
    schedule = Schedule(kind="period", period=3.7)
    assert local_steps(schedule, 0, 2) == 3
    assert schedule.probability == pytest.approx(1 / 3.7)


def test_coin_is_a_pure_function_of_seed_and_round() -> None:
    schedule = Schedule(kind="coin", period=10)
    forwards = [local_steps(schedule, 5, number) for number in range(1, 50)]
    backwards = [local_steps(schedule, 5, number) for number in range(49, 0, -1)]
    assert forwards == backwards[::-1]
    assert forwards != [local_steps(schedule, 6, number) for number in range(1, 50)]


def test_coin_is_geometric() -> None:
    steps = np.array([local_steps(Schedule(kind="coin", period=8), 1, number) for number in range(1, 4001)])
    assert steps.min() == 1
    assert steps.mean() == pytest.approx(8, rel=0.05)
    assert (steps == 1).mean() == pytest.approx(1 / 8, abs=0.02)
    assert (steps > 8).mean() == pytest.approx((7 / 8) ** 8, abs=0.03)


def test_period_one_always_takes_one_step() -> None:
    assert {local_steps(Schedule(kind="coin", period=1), 3, number) for number in range(1, 20)} == {1}
