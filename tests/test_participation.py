"""Rounds in which only a part of the clients takes part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.experiment.files import load_experiment
from common.learning.data import DataFolder
from server.simulation.simulation import Simulation
from tests.harness.small_data import write_cifar10

CPU = torch.device("cpu")


def simulation(algorithm: str, participation: float) -> Simulation:
    settings = [f"algorithm.name={algorithm}", "clients=6", "rounds=30", "schedule.period=4"]
    experiment = load_experiment("digits", settings)
    return Simulation(experiment, experiment.load(DataFolder.choose(None), CPU), CPU, participation)


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedcomloc_com",
        "hybrid",
        "locodl",
        "proxskip",
        "scaffold",
        "server_pruning_modified",
        "sparse_proxskip",
        "sparse_proxskip_arena",
        "tamuna",
    ],
)
def test_the_sum_stays_zero_while_half_of_the_clients_are_away(algorithm: str) -> None:
    half = simulation(algorithm, 0.5)
    records, present = [], set[tuple[int, ...]]()
    for record in half.rounds():
        records.append(record)
        present.add(tuple(half.cohorts[0].present))
    assert all(record.clients_counted == 3 for record in records)
    assert all(record.control_sum_norm is not None and record.control_sum_norm < 1e-5 for record in records)
    assert half.norms()["control_norm"] > 1e-3
    assert len(present) > 1  # not always the same ones


def test_scaffold_counts_with_the_share_that_took_part_not_with_the_one_asked_for() -> None:
    """A quarter of ten clients is two: the server's control moves by two tenths of their mean change."""
    experiment = load_experiment("digits", ["algorithm.name=scaffold", "clients=10", "rounds=12", "schedule.period=4"])
    quarter = Simulation(experiment, experiment.load(DataFolder.choose(None), CPU), CPU, participation=0.25)
    records = list(quarter.rounds())
    assert all(record.clients_counted == 2 for record in records)
    assert max(record.control_sum_norm or 0.0 for record in records) < 1e-6


def test_who_is_away_keeps_its_control_and_sends_nothing() -> None:
    third = simulation("sparse_proxskip", 1 / 3)
    third.step()
    before = third.cohorts[0].memory.control
    assert before is not None
    record = third.step()
    after = third.cohorts[0].memory.control
    assert after is not None
    present = third.cohorts[0].present
    moved = [client for client in range(6) if not torch.equal(before[client], after[client])]
    assert moved == present
    assert len(present) == record.clients_counted == 2


def test_networks_leave_clients_out_one_by_one(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    settings = ["clients=4", "rounds=3", "schedule.period=2", "task.width=2", "task.train_samples=60"]
    experiment = load_experiment("cifar10", settings)
    half = Simulation(experiment, experiment.load(DataFolder.choose(tmp_path), CPU), CPU, participation=0.5)
    for record in half.rounds():
        assert record.clients_counted == 2
        assert record.control_sum_norm is not None
        assert record.control_sum_norm < 1e-5
