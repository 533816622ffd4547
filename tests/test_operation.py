"""Monday morning: the programs started in the wrong order, with wrong options, killed and stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from client.__main__ import app as client_app
from common.errors import UserError
from server.__main__ import app as server_app
from server.link.fleet import Fleet
from tests.harness.processes import client_process, wait_until

RUN = ("run", "digits", "--clients", "2", "--insecure")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stat_of(pid: int) -> list[str]:
    """Return state, parent and so on of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def children_of(pid: int) -> set[int]:
    everybody = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return {one for one in everybody if stat_of(one)[1:2] == [str(pid)]}


def descendants_of(pid: int) -> set[int]:
    children = children_of(pid)
    return children.union(*(descendants_of(child) for child in children))


def alive(pid: int) -> bool:
    return stat_of(pid)[:1] not in ([], ["Z"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("run", "digits"), "--insecure for a trial"),
        ((*RUN, "--listen", "0.0.0.0:9092"), "--trust-network"),
        ((*RUN, "--keys", "keys"), "say one or the other"),
        ((*RUN, "--listen", "192.0.2.1:9092"), "--trust-network"),
        ((*RUN, "--trust-network", "--listen", "192.0.2.1:9092"), "cannot listen there"),
        (("run", "digits", "--keys", "/nowhere"), "keys init /nowhere --host"),
        (("keys", "add", "client-0", "--keys", "/nowhere"), "keys init /nowhere --host"),
        (("keys", "init", "/nowhere", "--host", "host:9092"), "without a port"),
        (("report", "/nowhere"), "not a run's folder"),
    ],
)
def test_a_server_that_cannot_start_says_why(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        server_app(arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("host:1",), "there is no join bundle host:1"),
        (("host", "--insecure"), "expected SERVER:PORT"),
        (("host:1", "--insecure", "--server", "host:2"), "--server is for a bundle"),
        ((__file__,), "is not a join bundle"),
        (("host:1", "--insecure", "--partition", "3/3"), "numbered from 0 to 2"),
        (("host:1", "--insecure", "--partitions", "5-2/9"), "expected I-J/N"),
        (("host:1", "--insecure", "--partitions", "0-1/2", "--name", "x"), "a name or a bundle is for one"),
        (("host:1", "--insecure", "--device", "cuda:99"), "--device cuda:99 cannot be used"),
    ],
)
def test_a_client_that_cannot_start_says_why(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        client_app(["join", *arguments], standalone_mode=False)


def test_a_port_in_use_is_one_line() -> None:
    with Fleet("127.0.0.1:0") as fleet, pytest.raises(UserError, match="the port is taken"):
        Fleet(fleet.address)


def test_clients_wait_for_the_server_and_all_end_at_a_word(tmp_path: Path) -> None:
    """The clients come first, one of them with the wrong part; the server says who is missing; Ctrl-C ends both."""
    address = f"127.0.0.1:{free_port()}"
    early, wrong, server_log = tmp_path / "early.log", tmp_path / "wrong.log", tmp_path / "server.log"
    with (
        client_process(address, "--insecure", "--partition", "0/2", log=early) as client,
        client_process(address, "--insecure", "--partition", "0/5", log=wrong),
    ):
        wait_until(lambda: "waiting for the server" in early.read_text())
        command = [sys.executable, "-m", "server", *RUN, "--listen", address, "--output", str(tmp_path / "run")]
        with server_log.open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: "1 of 2 are here (missing: client-1)" in server_log.read_text())
            wait_until(lambda: "a client cannot take part" in server_log.read_text())
            assert "joined the server" in early.read_text()
            assert "part 0 of 5" in wrong.read_text()
            server.send_signal(signal.SIGINT)
            server.wait(15)
        finally:
            server.kill()
        assert "Traceback" not in server_log.read_text()
        client.send_signal(signal.SIGINT)
        assert client.wait(15) == 0
        assert "Traceback" not in early.read_text()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_local_federation_ends_with_its_parent_even_when_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "server", "local", "digits", "--clients", "2", "--output", str(tmp_path / "run")]
    settings = ["--set", "rounds=100000"]
    server = subprocess.Popen([*command, *settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        rounds = tmp_path / "run" / "rounds.jsonl"
        wait_until(lambda: rounds.exists() and rounds.read_text().count("\n") > 3)
        children = descendants_of(server.pid)
        assert len(children) == 3  # the two clients, and the process that does the server's work
    finally:
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
    wait_until(lambda: not any(alive(child) for child in children), seconds=20)
