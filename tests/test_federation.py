"""Real federations: client processes, streams of gRPC, the strategy on them."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp

from common.errors import UserError
from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.messages.messages import Run, pack_run
from common.rounds.algorithm import Algorithm
from common.rounds.records import RoundRecord
from server.link.desk import Desk, Task
from server.link.hub import Hub
from server.simulation.simulation import Simulation
from strategies.flower.strategy import AlgorithmStrategy, FederationError
from strategies.flower.terms import Terms
from tests.harness.processes import client_process, clients, deploy
from tests.harness.witness import CPU, Witness, load

NAMES = plugins.available(Algorithm.plugin_package)
CLIENTS = 3
ROUNDS = 10


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """Three client processes that stay for one run after the other."""
    with Hub("127.0.0.1:0") as hub, clients(hub.address, CLIENTS, tmp_path_factory.mktemp("logs")):
        yield hub


def client_by_client(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """Return a simulation whose clients are no batch: it computes what they do by themselves, to the last bit."""
    problem = load(experiment)
    monkeypatch.setattr(problem, "batched", False)
    return Simulation(experiment, problem, CPU)


@pytest.mark.parametrize("name", NAMES)
def test_the_deployed_run_gives_the_simulators_model(name: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [f"algorithm.name={name}", f"clients={CLIENTS}", f"rounds={ROUNDS}", "schedule.period=4"]
    experiment = load_experiment("digits", settings)
    run = deploy(hub, experiment)
    simulation, records = Simulation(experiment, load(experiment), CPU), run.records
    expected = list(simulation.rounds())
    model = simulation.state.model
    assert float((run.model - model).norm() / model.norm()) < 1e-5
    assert run.counted == [CLIENTS] * ROUNDS
    assert [record.local_steps for record in records] == [record.local_steps for record in expected]
    assert records[-1].paper_bits_up == pytest.approx(expected[-1].paper_bits_up, rel=1e-3)
    alone = client_by_client(experiment, monkeypatch)
    assert_same_counts(records, list(alone.rounds()))
    assert run.model.equal(alone.state.model)


@pytest.mark.parametrize("precision", ["bfloat16", "grid"])
def test_rounded_uploads_are_half_the_bytes_and_the_same_as_simulated(
    precision: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [f"clients={CLIENTS}", "rounds=6", "schedule.period=4"]
    exact = deploy(hub, load_experiment("digits", [*settings, "codec.precision=float32"]))
    experiment = load_experiment("digits", [*settings, f"codec.precision={precision}"])
    rounded = deploy(hub, experiment)
    simulation = client_by_client(experiment, monkeypatch)
    assert_same_counts(rounded.records, list(simulation.rounds()))
    assert rounded.model.equal(simulation.state.model)
    assert not rounded.model.equal(exact.model)
    exact_bytes, rounded_bytes = exact.records[-1].payload_bytes_up, rounded.records[-1].payload_bytes_up
    assert exact_bytes is not None
    assert rounded_bytes is not None
    assert rounded_bytes < 0.6 * exact_bytes


@pytest.mark.parametrize("precision", ["bfloat16", "grid"])
@pytest.mark.parametrize("name", ["fedcomloc_com", "locodl", "tamuna", "sparse_proxskip_arena"])
def test_what_is_dealt_or_drawn_is_the_same_deployed_and_simulated(
    name: str, precision: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks go by the seat, roundings by the client, and uploads are given the round's model, on both sides."""
    settings = [f"algorithm.name={name}", f"clients={CLIENTS}", "rounds=6", "schedule.period=4"]
    experiment = load_experiment("digits", [*settings, f"codec.precision={precision}"])
    run = deploy(hub, experiment, Terms(audit_every_rounds=6))
    simulation = client_by_client(experiment, monkeypatch)
    assert_same_counts(run.records, list(simulation.rounds()))
    assert run.model.equal(simulation.state.model)
    audited = run.records[-1].control_sum_norm
    assert audited is not None
    assert audited < 1e-5


def assert_same_counts(deployed: Sequence[RoundRecord], simulated: Sequence[RoundRecord]) -> None:
    for real, expected in zip(deployed, simulated, strict=True):
        assert real.payload_bytes_up == expected.payload_bytes_up
        assert real.payload_bytes_down == expected.payload_bytes_down
        assert real.paper_bits_up == expected.paper_bits_up
        assert len(real.by_client) == real.clients_counted == expected.clients_counted
        assert not expected.by_client
        assert sum(one.payload_bytes_up or 0 for one in real.by_client.values()) == expected.payload_bytes_up
        assert sum(one.payload_bytes_down or 0 for one in real.by_client.values()) == expected.payload_bytes_down
        for one in real.by_client.values():
            assert one.message_bytes_up is not None
            assert one.message_bytes_down is not None
            assert one.payload_bytes_up is not None
            assert one.message_bytes_up > one.payload_bytes_up
            assert {"train", "encode", "save"} <= one.seconds.keys()
        assert real.waited_for in real.by_client
        assert real.seconds_by_phase == real.by_client[real.waited_for].seconds


def test_the_example_in_the_documentation_runs(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parent.parent / "docs" / "flower.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    module: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "docs/flower.md", "exec"), module)  # noqa: S102 - our own documentation
    experiment = load_experiment("digits", [f"clients={CLIENTS}", "rounds=3"])
    run = Run(experiment=experiment, name="example")
    app = module["app"]
    assert isinstance(app, ServerApp)
    with hub.run(run) as grid:
        app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=pack_run(run)))
    assert "test_accuracy" in capsys.readouterr().out


def test_a_run_that_diverges_ends_with_one_line(hub: Hub) -> None:
    settings = [f"clients={CLIENTS}", "rounds=20", "algorithm.name=fedavg", "algorithm.learning_rate=1e30"]
    with pytest.raises(FederationError, match="finite"):
        deploy(hub, load_experiment("digits", settings))


def test_clients_asked_for_their_loss_give_the_simulators(hub: Hub) -> None:
    experiment = load_experiment("digits", [f"clients={CLIENTS}", "rounds=3", "schedule.period=4"])
    run = deploy(hub, experiment, Terms(evaluate_on_clients=True))
    expected = list(Simulation(experiment, load(experiment), CPU).rounds())
    for record, simulated in zip(run.records, expected, strict=True):
        assert record.metrics["train_loss"] == pytest.approx(simulated.metrics["train_loss"], rel=1e-4)


def test_all_that_streams_carry_in_a_run_is_in_its_records(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load_experiment("digits", [f"clients={CLIENTS}", "rounds=4", "schedule.period=4"])
    witness = Witness(experiment, Terms(evaluate_on_clients=True, audit_every_rounds=2))
    carried = [0, 0]  # down, up
    count = Desk.count

    def counting(self: Desk, task: Task | None, *, down: int = 0, up: int = 0) -> None:
        count(self, task, down=down, up=up)
        carried[0] += down
        carried[1] += up

    monkeypatch.setattr(Desk, "count", counting)
    with hub.run(Run(experiment=experiment, name="counted")) as grid:
        grid.carried_beside()  # of the run before
        carried[:] = [0, 0]
        witness.run(grid)
        left, counted_here = grid.carried_beside(), list(carried)  # before the end of the run is told
    assert sorted(witness.records[1].traffic_beside_training) == ["audit", "evaluate"]
    assert "link" in witness.records[0].traffic_beside_training
    counted = [record.all_message_bytes for record in witness.records]
    up, down = (sum(column) for column in zip(*counted, strict=True))
    assert [down + left.down_bytes, up + left.up_bytes] == counted_here


def test_more_clients_than_there_are_cannot_be_the_minimum() -> None:
    experiment = load_experiment("digits", ["clients=2"])
    with pytest.raises(UserError, match="at least 3 of 2"):
        AlgorithmStrategy(experiment, load(experiment), Terms(minimum_clients=3))


def test_a_client_killed_in_mid_run_comes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    """It has a state folder: it takes its place again, and does the task that it was asked for."""
    experiment = load_experiment("digits", ["clients=2", "rounds=8", "schedule.period=4"])
    with Hub("127.0.0.1:0") as hub, ExitStack() as stack:

        def start(index: int) -> subprocess.Popen[bytes]:
            options = ("--insecure", "--partition", f"{index}/2", "--state", str(tmp_path / "state"))
            log = tmp_path / f"client-{index}-{time.monotonic()}.log"
            return stack.enter_context(client_process(hub.address, *options, log=log))

        victim = [start(0), start(1)][1]

        def kill_in_round_three(record: RoundRecord) -> None:
            if record.round == 3:
                victim.kill()
                start(1)

        run = deploy(hub, experiment, after=kill_in_round_three)
    assert not any("has left" in one or "asking again" in one for one in run.said)
    assert run.counted == [2] * 8
    simulation = Simulation(experiment, load(experiment), CPU)
    list(simulation.rounds())
    assert float((run.model - simulation.state.model).norm() / simulation.state.model.norm()) < 1e-5


def test_a_reply_that_is_too_large_is_refused_and_said_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.flower.strategy.largest_bytes", lambda state: 100)
    with pytest.raises(FederationError, match=r"client-\d: a reply of \d+ bytes where at most 100 were expected"):
        deploy(hub, load_experiment("digits", [f"clients={CLIENTS}", "rounds=2"]))
