"""A federation of four hosts in which every round something breaks."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from server.deploy.local_clients import leaving
from server.runs.run_folder import RunFolder
from tests.harness.models import linear_model
from tests.harness.namespaces import Network, needs_namespaces, network
from tests.harness.processes import lines_in, local, wait_until

CLIENTS = 3
BAD_ROUNDS, ROUNDS = 20, 24
PORT = 9092
CUT_SECONDS = 2.0

# For a server that waits, `digits` is as shipped. A round of 30 ms takes 2.6 s on links like these, more than half for
# the audit: so it can be hit while it is under way, before or after a client's upload.
KILOBITS_A_SECOND = 16
LATEST_SECONDS = 0.4

# For a server that does not wait: the deadline is shorter than a cut, and than a client takes to start. The rounds are
# long enough that most of what is broken in one is broken before its upload.
DEADLINE_SECONDS = 1.5
LONG_ROUNDS = ["--clients", str(CLIENTS), "--set", f"rounds={ROUNDS}", "--set", "schedule.period=256"]


class Hosts:
    """A server on host 0 and a client on each other, as processes that are killed and started again."""

    def __init__(self, net: Network, folder: Path, stack: ExitStack) -> None:
        self._net = net
        self._folder = folder
        self._stack = stack
        self._clients: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start all, and return the server."""
        listen = ("--listen", f"{self._net.address(0)}:{PORT}", "--insecure", "--trust-network")
        program = (sys.executable, "-m", "server", "run", "digits", *listen, "--audit-every", "1", *options)
        server = self._start(0, *program, "--output", str(self._folder / "run"))
        for host in range(1, CLIENTS + 1):
            self._join(host)
        return server

    def disturb(self, chance: random.Random) -> None:
        """Kill a client, which is started again, or cut its link for a while."""
        victim = chance.randrange(1, CLIENTS + 1)
        (self._kill if chance.random() < 0.5 else self._cut)(victim)

    def _join(self, host: int) -> None:
        part = f"{host - 1}/{CLIENTS}"
        server = (f"{self._net.address(0)}:{PORT}", "--insecure")
        program = (sys.executable, "-m", "client", "join", *server, "--partition", part)
        self._clients[host] = self._start(host, *program, "--state", str(self._folder / f"state-{host}"))

    def _kill(self, host: int) -> None:
        self._clients[host].send_signal(signal.SIGKILL)  # `ip` has become the program that it was told to run
        self._clients[host].wait()
        self._join(host)

    def _cut(self, host: int) -> None:
        self._net.cut(host)
        threading.Timer(CUT_SECONDS, self._net.heal, (host,)).start()

    def _start(self, host: int, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"host-{host}.log").open("ab") as log:
            process = subprocess.Popen([*self._net.on(host), *command], stdout=log, stderr=log)
        return self._stack.enter_context(leaving(process, 20))


@pytest.mark.slow
@needs_namespaces
def test_a_server_that_waits_for_all_ends_with_the_bits_of_a_calm_run(tmp_path: Path) -> None:
    """The server's defaults: whoever breaks in a round comes back in it, so nothing is lost."""
    chance = random.Random(5)  # noqa: S311 - no secret
    rounds = tmp_path / "run" / "rounds.jsonl"
    options = ("--clients", str(CLIENTS), "--set", f"rounds={ROUNDS}")
    subprocess.run(local("digits", *options, "--output", str(tmp_path / "calm")), check=True, timeout=300)
    with network(CLIENTS + 1) as net, ExitStack() as stack:
        for host in range(1, CLIENTS + 1):
            net.slow_down(host, KILOBITS_A_SECOND)
        hosts = Hosts(net, tmp_path, stack)
        server = hosts.start(*options)
        wait_until(lambda: any(tmp_path.glob("state-*/*.memory.*")), seconds=120)  # the first upload is on its way
        for number in range(1, BAD_ROUNDS + 1):
            wait_until(lambda: lines_in(rounds) >= number - 1, seconds=120)  # noqa: B023
            time.sleep(chance.uniform(0, LATEST_SECONDS))
            hosts.disturb(chance)
            assert lines_in(rounds) == number - 1, "the round was over before anything broke in it"
        assert server.wait(240) == 0
    folders = [RunFolder(tmp_path / name) for name in ("calm", "run")]
    calm, records = (folder.rounds() for folder in folders)
    assert [record.clients_counted for record in records] == [CLIENTS] * ROUNDS
    audits = [record.control_sum_norm for record in records if record.control_sum_norm is not None]
    assert len(audits) >= BAD_ROUNDS  # one is left out where a client was away for long
    assert max(audits) < 1e-5
    assert [record.metrics for record in records] == [record.metrics for record in calm]
    models = [linear_model(folder.path) for folder in folders]
    assert models[0].equal(models[1])
    log = (tmp_path / "host-0.log").read_text()
    assert "is back, by a new stream" in log
    assert "Traceback" not in log


@pytest.mark.slow
@needs_namespaces
def test_a_server_with_a_deadline_goes_on_without_whom_it_lost(tmp_path: Path) -> None:
    """Uploads are really lost here, and rounds averaged without them: the sum holds, and the model learns.

    How much accuracy that costs depends on who is lost: `python -m bench.faults` measures it.
    """
    chance = random.Random(5)  # noqa: S311 - no secret
    rounds = tmp_path / "run" / "rounds.jsonl"
    with network(CLIENTS + 1) as net, ExitStack() as stack:
        hosts = Hosts(net, tmp_path, stack)
        server = hosts.start("--minimum-clients", "2", "--deadline-seconds", str(DEADLINE_SECONDS), *LONG_ROUNDS)
        for number in range(1, BAD_ROUNDS + 1):
            wait_until(lambda: lines_in(rounds) >= number - 1 and rounds.exists(), seconds=120)  # noqa: B023
            hosts.disturb(chance)
        assert server.wait(240) == 0
    records = RunFolder(tmp_path / "run").rounds()
    assert [record.round for record in records] == list(range(1, ROUNDS + 1))
    missed = sum(record.clients_counted < CLIENTS for record in records)
    assert missed > BAD_ROUNDS // 2
    audits = [record.control_sum_norm for record in records if record.control_sum_norm is not None]
    assert audits
    assert max(audits) < 1e-5
    first, last = records[0].metrics["test_accuracy"], records[-1].metrics["test_accuracy"]
    assert last > first + 0.2
    assert "Traceback" not in (tmp_path / "host-0.log").read_text()
