"""What a link has to sit out: a server that stands still for minutes, clocks that jump, a client that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from server.deploy.local_clients import leaving
from server.keys.folder import Keys
from tests.harness.models import linear_model
from tests.harness.processes import children_of, free_port, lines_in, local, wait_until

CLIENTS = 2
STILL_SECONDS = 110.0  # longer than any keep-alive
FAKETIME = [path for path in Path("/usr/lib").glob("*/faketime/libfaketime.so.1") if path.exists()]
SETTINGS = ("--clients", str(CLIENTS), "--set", "rounds=40", "--set", "schedule.period=32")


class Federation:
    """A server and clients with bundles, each a process, by clocks that a test can set."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._clock = folder / "clock"
        self.rounds = folder / "run" / "rounds.jsonl"
        self.set_clocks("+0")
        keys = Keys.init(folder / "keys", ["127.0.0.1"], free_port())
        self._bundles = [str(keys.add(f"client-{index}")) for index in range(CLIENTS)]
        options = (*SETTINGS, "--keys", str(keys.folder), "--output", str(self.rounds.parent))
        self.server = self._start("server", "server", "run", "digits", *options)
        self.clients = [self.join(index) for index in range(CLIENTS)]

    def set_clocks(self, offset: str) -> None:
        self._clock.write_text(offset)

    def join(self, index: int) -> subprocess.Popen[bytes]:
        own = ("--partition", f"{index}/{CLIENTS}", "--state", str(self._folder / f"state-{index}"))
        return self._start(f"client-{index}", "client", "join", self._bundles[index], *own)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if FAKETIME:
            environment |= {"LD_PRELOAD": str(FAKETIME[0]), "FAKETIME_TIMESTAMP_FILE": str(self._clock)}
            environment |= {"FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", *command], stdout=log, stderr=log, env=environment)
        return self._stack.enter_context(leaving(process, 20))


def assert_same_model(folder: Path) -> None:
    """Compare with a run in which nothing happened."""
    subprocess.run(local("digits", *SETTINGS, "--output", str(folder / "calm")), check=True, timeout=300)
    models = [linear_model(folder / name) for name in ("calm", "run")]
    assert models[0].equal(models[1])


@pytest.mark.slow
@pytest.mark.skipif(not FAKETIME, reason="needs libfaketime, to set the clocks of single processes")
def test_a_server_that_stood_still_while_all_clocks_jumped_goes_on_by_itself(tmp_path: Path) -> None:
    with ExitStack() as stack:
        federation = Federation(tmp_path, stack)
        wait_until(lambda: lines_in(federation.rounds) >= 5)
        (child,) = children_of(federation.server.pid)
        os.kill(child, signal.SIGSTOP)
        federation.set_clocks("+1h")
        done = lines_in(federation.rounds)
        time.sleep(STILL_SECONDS)
        assert lines_in(federation.rounds) == done
        os.kill(child, signal.SIGCONT)
        assert federation.server.wait(120) == 0
        assert "Traceback" not in federation.log("server")
        assert "the server was killed" not in federation.log("server")
    times = [line.split('"time": "')[1][:13] for line in federation.rounds.read_text().splitlines()]
    assert int(times[-1][-2:]) in ((int(times[0][-2:]) + 1) % 24, (int(times[0][-2:]) + 2) % 24), "the clocks did jump"
    assert_same_model(tmp_path)


@pytest.mark.slow
def test_a_client_with_a_bundle_that_is_killed_is_back_in_the_same_round(tmp_path: Path) -> None:
    with ExitStack() as stack:
        federation = Federation(tmp_path, stack)
        for number in (5, 12, 19):
            wait_until(lambda: lines_in(federation.rounds) >= number)  # noqa: B023 - called at once
            federation.clients[1].kill()
            federation.clients[1].wait()
            federation.clients[1] = federation.join(1)
        assert federation.server.wait(120) == 0
        assert "asking again" not in federation.log("server")
        assert "has left" not in federation.log("server")
    assert_same_model(tmp_path)
