"""Clients that send models of an ordinary size which are lies: `--robust` leaves them out, whole, and keeps the sum."""

from __future__ import annotations

import numpy as np
import pytest

from bench.liars import accuracy, experiment_of, run, without_liars
from common.errors import UserError
from common.experiment.files import load_experiment
from common.rounds.robust import krum_scores, left_out, most_left_out
from common.vectors.entries import Blocks, Entries
from strategies.flower.strategy import AlgorithmStrategy
from strategies.flower.terms import Terms
from tests.harness.witness import load
from tests.hostile.liars import LIES, federation, flipped, liar

SHORT = ["rounds=30", "schedule.period=8"]


@pytest.mark.parametrize(
    "lie", ["flipped signs", *(pytest.param(one, marks=pytest.mark.slow) for one in LIES if one != "flipped signs")]
)
def test_two_of_ten_that_lie_cost_less_than_a_point(lie: str) -> None:
    """Where the plain mean fails."""
    experiment = experiment_of("digits", SHORT)
    alone = accuracy(without_liars(experiment))
    assert accuracy(run(experiment, LIES[lie], robust=False)) < alone - 20
    robust = run(experiment, LIES[lie], robust=True)
    assert accuracy(robust) > alone - 1
    assert max(robust.audits) < 1e-5
    assert robust.counted == [8] * 30
    put_out = [text for text in robust.said if "left out of 10 rounds in a row" in text]
    assert sorted(text.split()[0] for text in put_out) == ["client-3", "client-7"]


@pytest.mark.parametrize("name", ["tamuna", "locodl"])
def test_methods_whose_uploads_are_unlike_each_other_cannot_be_robust(name: str) -> None:
    experiment = load_experiment("digits", [f"algorithm.name={name}"])
    with pytest.raises(UserError, match=f"--robust compares uploads, and those of {name} are unlike each other"):
        AlgorithmStrategy(experiment, load(experiment), Terms(robust=1))


def test_who_is_left_out_is_named_and_the_others_sum_to_zero() -> None:
    experiment = load_experiment("digits", ["clients=7", "rounds=4", "schedule.period=4"])
    witness = federation(experiment, None, [2], liar(flipped), Terms(robust=1, audit_every_rounds=1))
    for record in witness.records[1:]:
        assert {why: group.names for why, group in record.clients_missing.items()} == {
            "its model is unlike those of the others": ["client-2"]
        }
    assert witness.counted == [6] * 4
    assert max(witness.audits) < 1e-5


def test_more_liars_than_there_can_be_are_refused() -> None:
    experiment = load_experiment("digits", ["clients=6"])
    with pytest.raises(UserError, match=r"of 6 clients at most 1 may lie \(--robust\), not 2"):
        AlgorithmStrategy(experiment, load(experiment), Terms(robust=2))


def dense(*values: float) -> Entries:
    return Entries(size=len(values), places=None, values=np.array(values, np.float32))


def test_a_krum_score_is_the_sum_over_the_nearest() -> None:
    places = np.array([0.0, 1.0, 3.0, 10.0, 11.0])
    squares = np.square(places[:, None] - places)
    # n - f - 2 = 2 nearest: 1 + 9, 1 + 4, 4 + 9, 1 + 49, 1 + 64
    assert krum_scores(squares, 1).tolist() == [10.0, 5.0, 13.0, 50.0, 65.0]


def test_the_most_unlike_are_left_out_and_who_is_far_in_any_case() -> None:
    models = {f"c{place}": dense(1.0 + 0.1 * place, 1.0) for place in range(7)}
    models["turned"] = dense(1.1, 0.4)
    models["far"] = dense(100.0, 100.0)
    assert list(left_out(models, liars=0, most=3)) == ["far"]
    assert list(left_out(models, liars=2, most=3)) == ["far", "turned"]
    assert most_left_out(9) == 3
    assert most_left_out(2) == 0


@pytest.mark.parametrize("width", [1, 2, 3, 5, 7])
def test_a_vector_in_parts_is_the_vector_however_it_is_given(width: int) -> None:
    values = np.array([0.0, 2.0, 0.0, 0.0, 5.0, 0.0], np.float32)
    places = np.flatnonzero(values).astype(np.int32)
    ways: list[Entries | Blocks] = [
        Entries(size=6, places=None, values=values),
        Entries(size=6, places=places, values=values[places]),
        Blocks(size=6, read=lambda: iter([values[:4], values[4:]])),
    ]
    for way in ways:
        parts = list(way.parts(width))
        assert np.concatenate(parts).tolist() == values.tolist()
        assert all(len(part) == width for part in parts[:-1])


@pytest.mark.slow
@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("lie", LIES)
def test_two_of_ten_writers_that_lie_cost_less_than_a_point(lie: str) -> None:
    experiment = experiment_of("femnist-90", ["rounds=60"])
    alone = accuracy(without_liars(experiment))
    assert accuracy(run(experiment, LIES[lie], robust=False)) < alone - 5
    robust = run(experiment, LIES[lie], robust=True)
    assert accuracy(robust) > alone - 1
    assert max(robust.audits) < 1e-5
