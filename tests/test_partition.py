import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from common.learning.partition import dirichlet_split


def split(labels: np.ndarray, clients: int, concentration: float = 0.3, variance: float = 0.3) -> list[np.ndarray]:
    return dirichlet_split(
        labels, clients, concentration=concentration, size_variance=variance, generator=np.random.default_rng(1)
    )


@settings(max_examples=50)
@given(st.integers(1, 40), st.floats(1e-3, 1e6), st.floats(0, 10), st.integers(0, 99))
def test_every_sample_goes_to_exactly_one_client(
    clients: int, concentration: float, variance: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, 4, 40)
    parts = split(labels, clients, concentration, variance)
    assert len(parts) == clients
    assert all(len(part) >= 1 for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(40))


def test_small_concentration_makes_clients_differ() -> None:
    labels = np.repeat(np.arange(10), 200)

    def largest_share(concentration: float) -> float:
        parts = split(labels, 10, concentration)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert largest_share(0.1) > 0.5
    assert largest_share(100.0) < 0.25


def test_sizes_are_equal_without_variance() -> None:
    assert {len(part) for part in split(np.repeat(np.arange(10), 20), 8, variance=0.0)} == {25}


def test_more_clients_than_samples_is_refused() -> None:
    with pytest.raises(UserError, match="only 3 samples"):
        split(np.array([0, 1, 2]), 4)


def test_the_logarithm_of_the_sizes_has_the_variance() -> None:
    sizes = np.array([len(part) for part in split(np.zeros(400_000, dtype=np.int64), 400, variance=0.3)])
    assert np.log(sizes).var() == pytest.approx(0.3, rel=0.2)
