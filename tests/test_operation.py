"""Monday morning: the programs started in the wrong order, with wrong options, killed and stopped."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import typer

from client.__main__ import app as client_app
from common.errors import UserError
from common.experiment.files import load_experiment
from common.say import Event
from server.__main__ import app as server_app
from server.commands.local import local
from server.commands.options import TERMS, with_terms
from server.commands.run import run
from server.deploy.local_clients import leaving, local_clients
from server.link.hub import Hub
from server.runs import run_folder
from server.runs.run_folder import RunFolder
from strategies.flower.terms import Terms
from tests.harness.namespaces import needs_namespaces, network
from tests.harness.processes import alive, client_process, descendants_of, free_port, wait_until

RUN = ("run", "digits", "--clients", "2", "--insecure")


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
        ((*RUN, "--evict-after", "10 minutes"), "such as 5, or a time, such as 90s"),
        (("local", "digits", "--evict-after", "0"), "such as 5, or a time, such as 90s"),
        (("local", "digits", "--evict-after", "m"), "such as 5, or a time, such as 90s"),
    ],
)
def test_a_server_that_cannot_start_says_why(arguments: tuple[str, ...], reason: str) -> None:
    assert_refused(reason, *arguments)


def test_a_run_is_refused_in_order_and_a_folder_without_a_run_goes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments, folder and lock, journal, port, data: all are wrong at first, and are put right one by one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 0.2)
    Path("EMPTY").mkdir()
    begun = RunFolder.create(Path("begun"), load_experiment("blogfeedback"), "feedback")
    (begun.path / "journal.safetensors").write_bytes(b"no journal")
    data, new = ("--data", "EMPTY"), ("--output", "deep/new")
    with Hub("127.0.0.1:0") as other:
        run, taken = ("run", "blogfeedback", "--insecure"), ("--listen", other.address)
        assert_refused("is unknown", *run, "--set", "task.name=x", *taken, *data, "--output", "begun")
        assert_refused("already holds a run", *run, *taken, *data, "--output", "begun")
        with begun.locked():
            assert_refused("another process is at work", *run, *taken, *data, "--resume", "begun")
        assert_refused("is not a run's journal", *run, *taken, *data, "--resume", "begun")
        assert_refused("the port is taken", *run, *taken, *data, *new)
    assert_refused("BlogFeedback.zip is not in", *run, "--listen", "127.0.0.1:0", *data, *new)
    assert_refused("BlogFeedback.zip is not in", "local", "blogfeedback", *data, *new)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["EMPTY", "begun"]
    assert_refused("BlogFeedback.zip is not in", "local", "blogfeedback", *data, "--output", "EMPTY")
    assert Path("EMPTY").is_dir()  # it is not ours to take away


def assert_refused(reason: str, *arguments: str) -> None:
    with pytest.raises(UserError, match=reason):
        server_app(arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("given", "terms"),
    [
        ((), Terms()),
        (("--evict-after", "10"), Terms(evict_after_rounds=10)),
        (("--evict-after", "10m", "--minimum-clients", "2"), Terms(evict_after_seconds=600.0, minimum_clients=2)),
        (("--audit-every", "3", "--deadline-seconds", "9"), Terms(audit_every_rounds=3, deadline_seconds=9.0)),
    ],
)
def test_run_and_local_take_the_same_terms(given: tuple[str, ...], terms: Terms) -> None:
    taken: list[Terms] = []

    @with_terms
    def command(experiment: str, *, terms: Terms) -> None:
        taken.append(terms)

    program = typer.Typer()
    program.command()(command)
    program(["digits", *given], standalone_mode=False)
    assert taken == [terms]
    assert all(TERMS.keys() <= inspect.signature(one).parameters.keys() for one in (run, local))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("host:1",), "there is no join bundle host:1"),
        (("host", "--insecure"), "expected SERVER:PORT"),
        (("host:1", "--insecure", "--server", "host:2"), "--server and --key are for a bundle"),
        ((__file__,), "is not a join bundle"),
        (("host:1", "--insecure", "--partition", "3/3"), "numbered from 0 to 2"),
        (("host:1", "--insecure", "--partitions", "5-2/9"), "expected I-J/N"),
        (("host:1", "--insecure", "--partitions", "0-1/2", "--name", "x"), "--name and --key are for one"),
        (("host:1", "--insecure", "--device", "cuda:99"), "--device cuda:99 cannot be used"),
    ],
)
def test_a_client_that_cannot_start_says_why(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        client_app(["join", *arguments], standalone_mode=False)


def test_a_port_in_use_is_one_line() -> None:
    with Hub("127.0.0.1:0") as hub, pytest.raises(UserError, match="the port is taken"), Hub(hub.address):
        pass


def test_clients_wait_for_the_server_and_all_end_at_a_word(tmp_path: Path) -> None:
    """The clients come first, one of them with the wrong part; the server says who is missing; Ctrl-C ends both."""
    address = f"127.0.0.1:{free_port()}"
    early, wrong, server_log = tmp_path / "early.log", tmp_path / "wrong.log", tmp_path / "server.log"
    with (
        client_process(address, "--insecure", "--partition", "0/2", "--threads", "1", log=early) as client,
        client_process(address, "--insecure", "--name", "wrong", "--partition", "0/5", log=wrong),
    ):
        wait_until(lambda: "waiting for the server" in early.read_text())
        where = "cuda:0: " if torch.cuda.is_available() else "cpu (threads: 1)\n"
        assert f"computing on {where}" in early.read_text()
        command = [sys.executable, "-m", "server", *RUN, "--listen", address, "--output", str(tmp_path / "run")]
        with server_log.open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: "1 of 2 are here\n" in server_log.read_text())
            wait_until(lambda: "wrong cannot take part: " in server_log.read_text())
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


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@contextmanager
def server_process(*arguments: str, cwd: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start `proxskip-server` as its script does, which has nothing of the working directory on its path."""
    with log.open("wb") as file:
        command = [sys.executable, "-P", "-m", "server", *arguments]
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=cwd)
    with leaving(process, 20):
        yield process


def rounds_in(folder: Path) -> list[dict[str, object]]:
    path = folder / "rounds.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


OWN_TASK = """
from dataclasses import dataclass

from common.tasks.digits import Digits


@dataclass(frozen=True, kw_only=True)
class Mine(Digits):
    pass
"""


@pytest.mark.slow
@needs_proc
def test_a_local_federation_in_a_folder_with_packages_of_the_same_names(tmp_path: Path) -> None:
    """Ours are taken, and the user's own task as well; SIGTERM ends all; a client that is killed ends all, too."""
    for name in ("client", "common", "server", "strategies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "mine.py").write_text(OWN_TASK)
    log, run = tmp_path / "log", tmp_path / "run"
    settings = ("--clients", "2", "--set", "task.name=mine:Mine", "--set", "rounds=100000", "--evaluate-on-clients")
    with server_process("local", "digits", *settings, "--output", "run", cwd=tmp_path, log=log) as server:
        wait_until(lambda: len(rounds_in(run)) > 3)
        everybody = descendants_of(server.pid)
        server.terminate()
        assert server.wait(20) == 128 + signal.SIGTERM
    assert "server local --resume run --evaluate-on-clients\n" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert not any(alive(one) for one in everybody)
    done = rounds_in(run)
    assert "train_loss" in done[-1]["metrics"]  # type: ignore[operator]
    with server_process("local", "--resume", "run", cwd=tmp_path, log=log) as server:
        wait_until(lambda: len(rounds_in(run)) > len(done) + 3)
        (victim,) = (one for one in descendants_of(server.pid) if b"1/2" in Path(f"/proc/{one}/cmdline").read_bytes())
        os.kill(victim, signal.SIGKILL)
        assert server.wait(20) == 2
    said = log.read_text()
    assert "error: the process of client-1 was killed (SIGKILL), and nobody starts it again" in said
    assert "(1 of 2 are left, a round needs 2)" in said
    assert "--resume run" in said


def test_a_client_process_that_ends_is_told_of_and_ends_what_needs_it(tmp_path: Path) -> None:
    said: list[str] = []
    arguments = {f"client-{index}": ["--partition", f"{index}/2"] for index in range(4)}
    with (
        pytest.raises(UserError, match=r"of client-\d has ended .*numbered from 0 to 1 \(2 of 4 are left.*needs 3\)"),
        local_clients(f"127.0.0.1:{free_port()}", arguments, needed=3, folder=tmp_path, say=said.append),
    ):
        threading.Event().wait(60)
    (first,) = said
    assert isinstance(first, Event)
    assert first.kind == "process ended"
    assert first.client in arguments
    assert "(exit code 2); its log" in first
    assert f"{tmp_path}" in first
    assert "numbered from 0 to 1" in first


def test_a_device_that_is_not_here_is_one_line_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--devices: 'cuda:99' is not on this machine; torch finds cpu"):
        server_app(["local", "digits", "--devices", "cpu,cuda:99"], standalone_mode=False)
    assert not list(tmp_path.rglob("experiment.yaml"))


def test_a_client_that_cannot_be_started_is_what_is_told(tmp_path: Path) -> None:
    """Not those that were, and are then told to leave."""
    (tmp_path / "client-1.log").mkdir()
    arguments = {f"client-{index}": ["--partition", f"{index}/3"] for index in range(3)}
    with (
        pytest.raises(UserError, match=r"cannot write .*client-1\.log"),
        local_clients(f"127.0.0.1:{free_port()}", arguments, needed=3, folder=tmp_path, say=lambda _: None),
    ):
        pass


def test_a_command_without_a_guard_ends_at_sigterm(tmp_path: Path) -> None:
    arguments = ("compare", "digits", "fedavg", "--set", "rounds=100000", "--output", "all")
    with server_process(*arguments, cwd=tmp_path, log=tmp_path / "log") as server:
        wait_until(lambda: len(rounds_in(tmp_path / "all" / "fedavg")) > 3)
        server.terminate()
        assert server.wait(20) == 128 + signal.SIGTERM
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_service_begins_goes_on_and_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`run --go-on`: its first round is refused for --largest-norm; it goes on without that; then there is no more."""
    address, run = f"127.0.0.1:{free_port()}", tmp_path / "run"
    service = ("run", "digits", "--clients", "1", "--set", "rounds=3", "--insecure", "--listen", address, "--go-on")
    assert_refused("say which, and leave out --resume", *service)
    with client_process(address, "--insecure", "--partition", "0/1", "--state", str(tmp_path), log=tmp_path / "log"):
        assert_refused("round 1 cannot be done: client-0", *service, "--output", str(run), "--largest-norm", "1e-9")
        assert not rounds_in(run)
        server_app([*service, "--output", str(run), "--evaluate-on-clients"], standalone_mode=False)
    said = capsys.readouterr().out
    assert "going on after round 0 of 3" in said
    assert f"weights (density 0.1), in {run}\n" in said
    assert (run / "experiment.yaml").read_text().startswith("# data: scikit-learn digits\n")
    assert all("train_loss" in record["metrics"] for record in rounds_in(run))  # type: ignore[operator]
    server_app([*service, "--output", str(run)], standalone_mode=False)
    assert f"{run} is finished, after 3 rounds" in capsys.readouterr().out
    assert_refused("another experiment", *service, "--output", str(run), "--set", "seed=7")


@contextmanager
def listening(on: Sequence[str], address: str) -> Iterator[int]:
    """Let a process on another host listen; return its port."""
    program = (
        "import socket, sys\n"
        "family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET\n"
        "server = socket.create_server((sys.argv[1], 0), family=family)\n"
        "print(server.getsockname()[1], flush=True)\n"
        "sys.stdin.read()"
    )
    command = [*on, sys.executable, "-c", program, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


@needs_namespaces
def test_a_container_is_healthy_when_it_listens_or_is_connected_to_others() -> None:
    check = [sys.executable, str(Path(__file__).parents[1] / "docker" / "healthcheck.py")]
    with network(2) as hosts:
        server, client = hosts.on(0), hosts.on(1)

        def is_healthy(on: Sequence[str]) -> bool:
            return subprocess.run([*on, *check], check=False).returncode == 0

        assert not is_healthy(server)
        with listening(server, "127.0.0.11"), listening(server, "::1"):  # as Docker's own resolver does
            assert not is_healthy(server)
        with listening(server, "0.0.0.0") as port:  # noqa: S104 - in a network of its own
            assert is_healthy(server)
            assert not is_healthy(client)
            program = (
                f"import socket, sys; link = socket.create_connection(({hosts.address(0)!r}, {port}))\n"
                "print(flush=True); sys.stdin.read()"
            )
            command = [*client, sys.executable, "-c", program]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as connected:
                assert connected.stdout is not None
                connected.stdout.readline()
                assert is_healthy(client)
                connected.communicate()


@needs_proc
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
