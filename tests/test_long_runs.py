"""Long and large: a thousand rounds without growth, a full ResNet18 over the wire."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from bench.payload import TASK
from common.experiment.files import load_experiment
from common.rounds.records import RoundRecord
from server.link.hub import Hub
from tests.harness import small_data
from tests.harness.memory import messages_in_memory, resident_bytes
from tests.harness.processes import clients, deploy

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parent.parent


def test_a_thousand_rounds_leave_no_messages_and_no_threads_behind(tmp_path: Path) -> None:
    experiment = load_experiment("digits", ["clients=2", "rounds=1000", "schedule.period=2"])
    seen: list[tuple[int, int]] = []

    def look(record: RoundRecord) -> None:
        if record.round in (200, 1000):  # by then all that is filled once is full
            seen.append((messages_in_memory(), threading.active_count()))

    with Hub("127.0.0.1:0") as hub, clients(hub.address, 2, tmp_path):
        deploy(hub, experiment, after=look)
    (messages, threads), (messages_later, threads_later) = seen
    assert messages_later <= messages + 10
    assert threads_later <= threads + 2


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_rounds_with_a_large_model_leave_none_of_them_behind(tmp_path: Path) -> None:
    """One copy of 4 MB that was left behind in each round would be 200 MB in the end; a tenth of that is allowed."""
    settings = ["task.size=1000000", "rounds=70", "clients=2"]
    experiment = load_experiment(str(REPOSITORY / "bench" / "payload.yaml"), settings)
    with (
        Hub("127.0.0.1:0") as hub,
        clients(hub.address, 2, tmp_path, "--allow-task", TASK) as processes,
    ):
        watched = [os.getpid(), *(process.pid for process in processes)]
        sizes: list[list[int]] = []

        def look(record: RoundRecord) -> None:
            if record.round in (20, 70):
                gc.collect()
                sizes.append([resident_bytes(pid) for pid in watched])

        deploy(hub, experiment, after=look)
    for before, after in zip(*sizes, strict=True):
        assert after - before < 0.1 * 50 * 4_000_000


def test_a_resnet18_federates_and_its_bytes_are_as_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    small_data.write_cifar10(data)
    monkeypatch.setenv("PROXSKIP_DATA", str(data))
    settings = ["clients=2", "rounds=2", "schedule.period=1", "task.batch_size=4"]
    experiment = load_experiment("cifar10", settings)
    with Hub("127.0.0.1:0") as hub, clients(hub.address, 2, tmp_path):
        run = deploy(hub, experiment)
    size, buffers = run.model.numel(), run.strategy.state.buffers
    assert size > 11_000_000
    assert buffers is not None
    kept = 2 * round(0.1 * size)  # by both clients
    for record in run.records:
        assert record.clients_counted == 2
        assert record.payload_bytes_up is not None
        assert 2 < 8 * record.payload_bytes_up / kept < 12, "bits of a bfloat16 given the model, and of its place"
        assert record.payload_bytes_up == sum(one.payload_bytes_up or 0 for one in record.by_client.values())
        assert record.message_bytes_up is not None
        assert record.message_bytes_down is not None
        # The model comes down in pieces of 1 MB, each of which is asked for with headers of 0.7 kB.
        assert record.payload_bytes_up < record.message_bytes_up < 1.01 * record.payload_bytes_up
        assert record.payload_bytes_down is not None
        assert record.payload_bytes_down < record.message_bytes_down < 1.001 * record.payload_bytes_down
