"""What is written down of a round: one definition, deployed and simulated, that survives its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flwr.app import Message, MessageType
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.experiment.files import load_experiment
from common.messages.messages import Run
from common.rounds.account import RoundAccount
from common.rounds.records import ClientTraffic, PeakMemory, RoundRecord, Traffic
from server.runs.report import curve
from server.runs.run_folder import RunFolder
from server.simulation.simulation import Simulation
from strategies.flower.terms import Terms
from tests.harness.loopback import Fate, LoopbackClient, LoopbackGrid
from tests.harness.witness import CPU, Witness, load

CLIENTS = 4
EXPERIMENT = load_experiment("digits", [f"clients={CLIENTS}", "rounds=3", "schedule.period=4"])

counts = st.none() | st.integers(0, 2**40)
numbers = st.floats(allow_nan=False, allow_infinity=False)
traffic = st.builds(
    Traffic, payload_bytes_up=counts, payload_bytes_down=counts, message_bytes_up=counts, message_bytes_down=counts
)
records = st.builds(
    RoundRecord,
    clients_missing=st.dictionaries(st.text(), st.text()),
    traffic_beside_training=st.dictionaries(st.sampled_from(["audit", "evaluate", "join"]), traffic),
    traffic_by_client=st.dictionaries(st.text(), st.builds(ClientTraffic, paper_bits_up=st.integers(0, 2**40))),
    memory_by_client=st.dictionaries(st.text(), st.builds(PeakMemory, st.none() | numbers, st.none() | numbers)),
    metrics=st.dictionaries(st.text(), numbers),
    seconds_by_phase=st.dictionaries(st.text(), numbers),
    paper_bits_up=numbers,
    density_up=numbers,
    density_down=numbers,
    seconds=numbers,
    control_sum_norm=st.none() | numbers,
)


@given(records)
def test_a_record_survives_its_line(record: RoundRecord) -> None:
    line = record.to_json()
    assert "\n" not in line
    assert RoundRecord.of_json(line) == record


def test_a_record_survives_its_file_and_another_versions_is_one_line(tmp_path: Path) -> None:
    (record, *_) = Simulation(EXPERIMENT, load(EXPERIMENT), CPU).rounds()
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT, "digits")
    folder.add_round(record)
    assert folder.rounds() == [record]
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "local_steps": 4}\n')
    with pytest.raises(UserError, match=r"rounds\.jsonl was written by another version, or damaged"):
        folder.rounds()


def test_what_is_a_clients_is_a_mean_over_all_of_them() -> None:
    """Two of four clients send 3 and 1 values of 8: 32 bits for a client, though those counted have sent 64."""
    model = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0])
    account = RoundAccount(EXPERIMENT.plan(2), model, clients=4)
    spent = account.spent_on("train")
    spent.payload_up.update({"a": 30, "b": 10})
    spent.payload_down.update({"a": 5, "b": 5})
    spent.message_up += 50
    account.spent_on("audit").payload_up["a"] += 7
    record = account.record(
        bits_up_before=100.0, values={"a": 3, "b": 1}, model_values=4, control_sum_norm=None, metrics={"m": 1.0}
    )
    assert record.paper_bits_up == 100 + 32 * 4 / 4
    assert (record.density_up, record.density_down) == (4 / 16, 1 / 8)
    assert (record.payload_bytes_up, record.payload_bytes_down, record.message_bytes_up) == (40, 10, 50)
    assert record.traffic_beside_training == {"audit": Traffic(payload_bytes_up=7)}
    assert record.traffic_by_client["b"] == ClientTraffic(paper_bits_up=32, payload_bytes_up=10, payload_bytes_down=5)
    assert record.all_message_bytes == (50, 0)
    assert curve([record], "m", as_sent=True) == [(8 * 40 / 4, 1.0)]


def grid_without(lost: int | None = None) -> LoopbackGrid:
    run = Run(experiment=EXPERIMENT, name="records")
    clients = {index + 1: LoopbackClient(index, None, run) for index in range(CLIENTS)}

    def fate(message: Message) -> Fate:
        trains = message.metadata.message_type == MessageType.TRAIN
        return Fate.LOST if trains and message.metadata.dst_node_id == lost else Fate.ANSWERED

    return LoopbackGrid(clients, fate)


class CountingGrid(LoopbackGrid):
    """A grid that knows its bytes, as our own link does: 1000 down and 10 up for an order, 1 down for anything else."""

    down = up = 0

    def wait_for_reply(self, seconds: float) -> None:
        raise AssertionError("answers are here at once")

    def forget(self, message_ids: set[str]) -> None:
        assert not message_ids

    def redirect(self, message_id: str, node_id: int) -> None: ...

    def limit_replies(self, largest_bytes: int) -> None: ...

    def registered_name(self, node_id: int) -> str | None:
        return None

    def traffic_bytes(self) -> tuple[int, int]:
        return self.down, self.up

    def traffic_bytes_by_node(self) -> dict[int, tuple[int, int]]:
        return {1: (self.down // CLIENTS, self.up // CLIENTS)}

    def _deliver(self, message: Message) -> str:
        trains = message.metadata.message_type == MessageType.TRAIN
        self.down, self.up = self.down + (1000 if trains else 1), self.up + (10 if trains else 0)
        return super()._deliver(message)


def test_all_attempts_at_a_round_are_counted_as_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.flower.strategy.FIRST_PAUSE_SECONDS", 0.0)
    lost = iter([True])

    def fate(message: Message) -> Fate:
        of_round_two = message.metadata.message_type == MessageType.TRAIN and message.metadata.group_id == "2"
        return Fate.LOST if of_round_two and next(lost, False) else Fate.ANSWERED

    grid = CountingGrid(grid_without().clients, fate)
    first, second, third = Witness(EXPERIMENT).run(grid).records
    assert (first.message_bytes_down, first.message_bytes_up) == (1000 * CLIENTS, 10 * CLIENTS)
    assert first.traffic_beside_training == {"join": Traffic(message_bytes_down=CLIENTS)}
    assert (second.message_bytes_down, second.message_bytes_up) == (2 * 1000 * CLIENTS, 2 * 10 * CLIENTS)
    assert second.traffic_by_client["client-0"].message_bytes_down == 2000
    assert not second.traffic_beside_training
    assert third.message_bytes_down == 1000 * CLIENTS


def test_bits_are_counted_alike_deployed_and_simulated_also_where_a_client_is_away() -> None:
    away = Witness(EXPERIMENT, Terms(minimum_clients=3)).run(grid_without(2)).records
    partly = list(Simulation(EXPERIMENT, load(EXPERIMENT), CPU, participation=0.75).rounds())
    for deployed, simulated in zip(away, partly, strict=True):
        assert deployed.clients == simulated.clients == CLIENTS
        assert deployed.clients_counted == simulated.clients_counted == 3
        assert deployed.paper_bits_up == simulated.paper_bits_up == 32 * 65 * 3 / 4 * deployed.round


def test_all_payloads_are_counted_by_what_they_are_for() -> None:
    terms = Terms(minimum_clients=3, audit_every_rounds=2, evaluate_on_clients=True)
    run = Witness(EXPERIMENT, terms).run(grid_without())
    spent = [record.traffic_beside_training for record in run.records]
    assert [sorted(one) for one in spent] == [["evaluate"], ["audit", "evaluate"], ["evaluate"]]
    evaluated, audited = spent[1]["evaluate"], spent[1]["audit"]
    assert evaluated.payload_bytes_down is not None
    assert evaluated.payload_bytes_down > CLIENTS * 65 * 4  # a pruned model each
    assert not evaluated.payload_bytes_up
    assert audited.payload_bytes_down is not None
    assert audited.payload_bytes_up is not None
    assert audited.payload_bytes_up > CLIENTS * 65 * 4  # a control each, on the support of all uploads so far
