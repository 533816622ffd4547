"""The sum of the control variates in a deployed run, as an audit finds it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.experiment.files import load_experiment
from common.messages.messages import Run, pack_run
from common.rounds.records import RoundRecord
from server.link.fleet import Fleet
from strategies.flower.strategy import AlgorithmStrategy
from tests.processes import client_process, clients, load, wait_until

CLIENTS = 3


@contextmanager
def federation(folder: Path) -> Iterator[tuple[Fleet, list[subprocess.Popen[bytes]]]]:
    with Fleet("127.0.0.1:0") as fleet, clients(fleet.address, CLIENTS, folder, "--state", str(folder)) as processes:
        yield fleet, processes


def test_an_audit_sees_whether_the_sum_is_zero(tmp_path: Path) -> None:
    with federation(tmp_path) as (fleet, _):
        for name, holds in (("sparse_proxskip", True), ("scaffold", True), ("sparse_proxskip_modified", False)):
            settings = [f"clients={CLIENTS}", "rounds=12", f"algorithm.name={name}", "schedule.period=4"]
            experiment = load_experiment("digits", settings)
            records: list[RoundRecord] = []
            strategy = AlgorithmStrategy(
                experiment, load(experiment).initial_state(), audit_every_rounds=4, on_round=records.append
            )
            with fleet.run(pack_run(Run(experiment=experiment, name=name))) as grid:
                strategy.start(grid, strategy.initial_arrays, num_rounds=experiment.rounds, timeout=120)
            audits = {record.round: record.control_sum_norm for record in records}
            assert {number for number, audit in audits.items() if audit is not None} == {4, 8, 12}
            assert all((audit or 0.0) < 1e-5 for audit in audits.values()) == holds


def test_a_second_client_of_the_same_name_is_left_out_and_told_so(tmp_path: Path) -> None:
    """Counted twice, or in turns, the two would break the sum."""
    experiment = load_experiment("digits", ["clients=2", "rounds=5"])
    said: list[str] = []
    with Fleet("127.0.0.1:0") as fleet, clients(fleet.address, 2, tmp_path):
        strategy = AlgorithmStrategy(
            experiment, load(experiment).initial_state(), audit_every_rounds=5, on_round=lambda _: None, say=said.append
        )
        with fleet.run(pack_run(Run(experiment=experiment, name="double"))) as grid:
            strategy.roster.gather(grid, 2)
            own = dict(strategy.roster.nodes)
            log = tmp_path / "double.log"
            with client_process(fleet.address, "--insecure", "--partition", "0/2", log=log):

                def is_told() -> bool:
                    strategy.roster.update(grid)
                    return "another client is called client-0 already" in log.read_text()

                wait_until(is_told)
                strategy.start(grid, strategy.initial_arrays, num_rounds=experiment.rounds, timeout=120)
    assert strategy.roster.nodes == own
    assert sum("client-0 is here already" in text for text in said) == 1


@pytest.mark.slow
def test_a_client_that_is_away_for_some_rounds_settles_when_it_is_back(tmp_path: Path) -> None:
    """It hangs in round 4 with an upload that round 3 has counted, and comes back in round 9 or so."""
    experiment = load_experiment("digits", [f"clients={CLIENTS}", "rounds=14", "schedule.period=4"])
    records: list[RoundRecord] = []
    with federation(tmp_path) as (fleet, processes):

        def on_round(record: RoundRecord) -> None:
            records.append(record)
            if record.round == 3:
                processes[1].send_signal(signal.SIGSTOP)
            if record.round == 8:
                processes[1].send_signal(signal.SIGCONT)

        strategy = AlgorithmStrategy(
            experiment,
            load(experiment).initial_state(),
            minimum_clients=2,
            deadline_seconds=3,
            audit_every_rounds=1,
            on_round=on_round,
        )
        with fleet.run(pack_run(Run(experiment=experiment, name="away"))) as grid:
            strategy.start(grid, strategy.initial_arrays, num_rounds=experiment.rounds)
    counted = [record.clients_counted for record in records]
    assert counted[:3] == [3, 3, 3]
    assert counted[3:8] == [2] * 5
    assert counted[-3:] == [3, 3, 3]
    assert "client-1" in records[5].clients_missing
    audits = [record.control_sum_norm for record in records]
    assert audits[-1] is not None
    assert all(audit is None or audit < 1e-5 for audit in audits)
