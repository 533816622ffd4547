"""Real runs as people and programs watch them: on a terminal, in a log, by status.json; stopped, and gone on with."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from server.commands.watching import _started
from server.link.grid import LinkGrid
from strategies.flower.roster import Roster
from tests.harness.processes import client_process, free_port, lines_in, proxskip_server, wait_until
from tests.harness.terminal import on_terminal

SERVER = (sys.executable, "-m", "server")
LOCAL = (*SERVER, "local", "digits", "--clients", "2", "--set", "rounds=100000", "--set", "schedule.period=2")


def status_in(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def rounds_in(folder: Path) -> int:
    return lines_in(folder / "rounds.jsonl")


def test_a_run_on_a_terminal_is_stopped_and_goes_on_by_the_command_that_it_says(tmp_path: Path) -> None:
    """The command is run as it stands, by a shell; bytes and rounds go on where they were."""
    run = tmp_path / "runs" / "my run"
    command = (*LOCAL, "--output", "runs/my run", "--minimum-clients", "2", "--evaluate-on-clients")
    with on_terminal(command, tmp_path) as stopped:
        wait_until(lambda: " per round · " in stopped.text and "best 0." in stopped.text)
        wait_until(lambda: "✓  client-1  answered" in stopped.text)
        wait_until(lambda: status_in(run).get("round", 0) > 1)
        stopped.press_ctrl_c()
        pressed = time.monotonic()
        assert stopped.wait(20) == 128 + signal.SIGINT
        assert time.monotonic() - pressed < 5.0  # it is a fifth of a second on a machine with nothing else to do
    assert "Traceback" not in stopped.text
    assert "error" not in stopped.text
    assert re.search(r"\d\d:\d\d:\d\d  stopped after round \d+ of 100000\n", stopped.text)
    (to_go_on,) = re.findall(r"^to go on: (.*)$", stopped.text, re.MULTILINE)
    options = "--minimum-clients 2 --evaluate-on-clients"
    assert to_go_on == f"{sys.executable} -m server local --resume 'runs/my run' {options}"
    status, done = status_in(run), rounds_in(run)
    assert (status["state"], status["command"]) == ("stopped", to_go_on)
    with on_terminal(f"exec {to_go_on}", tmp_path, columns=120) as gone_on:
        wait_until(lambda: rounds_in(run) > done + 5)
        wait_until(lambda: "/100000 · " in gone_on.text)
        gone_on.press_ctrl_c()
        gone_on.wait(20)
    # The journal is written before rounds.jsonl: Ctrl-C may have come in between.
    assert re.search(rf"going on after round ({done}|{done + 1}) of 100000", gone_on.text)
    (first,) = re.findall(r"sent ([\d.]+) kB per client", gone_on.text)[:1]
    (last,) = re.findall(r"sent ([\d.]+) kB per client", stopped.text)[-1:]
    assert float(first) >= float(last)


@pytest.mark.slow
def test_a_run_tells_what_it_is_at_from_its_start_to_its_end(tmp_path: Path) -> None:
    """One of two is there; then both; one stands still, and the other waits for it; then all is done."""
    address, run = f"127.0.0.1:{free_port()}", tmp_path / "run"
    arguments = ("run", "digits", "--clients", "2", "--insecure", "--listen", address, "--output", str(run))
    settings = ("--set", "rounds=400", "--set", "schedule.period=2", "--deadline-seconds", "120")
    logs = [tmp_path / "first.log", tmp_path / "second.log"]

    def client(index: int) -> Any:  # noqa: ANN401 - a context
        return client_process(address, "--insecure", "--partition", f"{index}/2", "--device", "cpu", log=logs[index])

    def is_at(**expected: object) -> bool:
        status = status_in(run)
        return all(status.get(key) == value for key, value in expected.items())

    with on_terminal([*SERVER, *arguments, *settings], tmp_path) as server, client(0):
        wait_until(lambda: is_at(state="gathering", text="waiting for clients: 1 of 2 are here"))
        wait_until(lambda: is_at(clients_by_state={"idle": 1}) or is_at(clients_by_state={"answered": 1}))
        with client(1) as second:
            wait_until(lambda: rounds_in(run) > 5)
            os.kill(second.pid, signal.SIGSTOP)
            wait_until(lambda: is_at(state="training", waiting_for=["client-1"], counted=1))
            wait_until(lambda: " waits for client-1, " in status_in(run)["text"])
            status = status_in(run)
            os.kill(second.pid, signal.SIGCONT)
            assert server.wait(60) == 0
            wait_until(lambda: "run finished" in logs[1].read_text())
            with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))) as door:
                door.settimeout(60)
                door.accept()[0].close()  # they try to reach the server again, and say nothing of it
    assert {key: status[key] for key in ("how", "task", "algorithm", "data", "metric", "weights")} == {
        "how": "deployed",
        "task": "digits",
        "algorithm": "sparse_proxskip",
        "data": "scikit-learn digits",
        "metric": "test_accuracy",
        "weights": 650,
    }
    assert (status["rounds"], status["clients"], status["needed"], status["deadline_seconds"]) == (400, 2, 2, 120.0)
    assert status["round"] == status_in(run)["round"] or status["round"] > 5
    assert status["round_started"] <= status["time"]
    assert status["by_client"]["client-0"]["state"] == "answered"
    assert status["by_client"]["client-0"]["device"] == "cpu"
    assert status["by_client"]["client-1"]["since"] <= status["time"]
    assert is_at(state="finished", round=400, text="")
    assert re.search(r"score   test_accuracy 0\.\d+, best 0\.\d+ in round \d+\n", server.text)
    assert re.search(r"rounds  400 in .* of training, .* per round\n", server.text)
    assert re.search(r"sent    .* up, .* down per client \(on the wire .*\)\n", server.text)
    assert f"model   65 of 650 weights (density 0.1), in {run}\n" in server.text
    assert f"next    {run}/report.html, for a browser\n        proxskip-server watch " in server.text
    for log in logs:
        said = log.read_text().splitlines()[3:]  # without a warning, that it is preparing, and on which device
        name = said[0].partition(":")[0]
        assert f"{name}: takes part in digits: task digits, method sparse_proxskip, 400 rounds, 2 clients" in said
        assert re.fullmatch(
            rf"{name}: run finished: 400 rounds, test_accuracy 0\.\d+; 400 counted of this client, "
            r"sent \S+ kB, got \S+ kB, .* s of work; waiting for the next run",
            said[-1],
        )


def test_a_simulation_keeps_its_status_too(tmp_path: Path) -> None:
    command = [*SERVER, "simulate", "digits", "--device", "cpu", "--set", "rounds=100000", "--output", "my runs/one"]
    run = tmp_path / "my runs" / "one"
    with on_terminal(command, tmp_path, columns=150) as simulation:
        wait_until(lambda: status_in(run).get("round", 0) > 5)
        status = status_in(run)
        wait_until(lambda: status_in(run)["time"] > status["time"])
        wait_until(lambda: "/100000 · " in simulation.text)
        simulation.press_ctrl_c()
        simulation.wait(20)
    assert (status["state"], status["how"], status["by_client"]) == ("training", "simulated", {})
    to_go_on = f"{sys.executable} -m server simulate --resume 'my runs/one' --device cpu"
    assert f"to go on: {to_go_on}\n" in simulation.text
    assert status_in(run)["state"] == "stopped"
    done = rounds_in(run)
    with on_terminal(f"exec {to_go_on}", tmp_path) as gone_on:
        wait_until(lambda: rounds_in(run) > done)
        gone_on.press_ctrl_c()
        gone_on.wait(20)


def test_a_run_that_fails_says_so_in_its_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("--set", "algorithm.learning_rate=1e30", "--output", str(run))
    ended = proxskip_server("simulate", "digits", *settings)
    assert ended.returncode == 2
    assert "to go on" not in ended.stdout  # it would diverge again
    status = status_in(run)
    assert status["state"] == "failed"
    assert f"error: {status['text']}\n" == ended.stderr
    last = json.loads((run / "events.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["text"]) == ("failed", status["text"])


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/dev/full").exists(), reason="nothing that cannot be written")
def test_a_status_that_cannot_be_written_is_nobodys_trouble(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "status.new").symlink_to("/dev/full")
    ended = proxskip_server("simulate", "digits", "--set", "rounds=3", "--output", str(run))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert rounds_in(run) == 3


def test_a_client_on_a_terminal_keeps_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "client", "join", f"127.0.0.1:{free_port()}", "--insecure", "--partition", "0/2"]
    with on_terminal(command, tmp_path) as client:
        wait_until(lambda: "nobody listens there yet" in client.text)
        wait_until(lambda: client.text.count("waiting for the server at 127.0.0.1:") > 1)
        client.press_ctrl_c()
        assert client.wait(20) == 0
    assert "ipv4" not in client.text


def test_ctrl_c_is_not_for_the_page_of_a_run(tmp_path: Path) -> None:
    """Else it ends while it starts, and its last words look like an error of the run."""
    page = _started(tmp_path, lambda _: None)
    assert page is not None
    assert os.getsid(page.pid) == page.pid
    page.kill()
    page.communicate()


@pytest.mark.parametrize("program", ["server", "client"])
def test_help_is_quick(program: str) -> None:
    """In seconds of computing, whatever else the machine does."""
    before = os.times()
    for option in ("--help", "--version"):
        with on_terminal([sys.executable, "-m", program, option], Path.cwd()) as ended:
            assert ended.wait(30) == 0
    after = os.times()
    assert (after.children_user - before.children_user) + (after.children_system - before.children_system) < 2 * 0.5


def test_a_log_is_calm_and_may_be_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off a terminal there is a line now and then, and no picture; signs that the log cannot hold are no trouble."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    ended = proxskip_server("simulate", "digits", "--set", "rounds=30", "--output", str(tmp_path / "run"))
    lines = ended.stdout.splitlines()
    assert [line.split()[0] for line in lines[:-2]] == ["preparing", "score", "rounds", "sent", "model", "next"]


@pytest.mark.parametrize(("known", "named"), [({}, ""), ({"hospital-a": "its identity"}, " (missing: hospital-a)")])
def test_only_who_was_in_the_run_is_missing(known: dict[str, str], named: str) -> None:
    said: list[str] = []
    Roster(2, said.append, known).gather(LinkGrid(lambda _: None), 2, patience_seconds=1.1)
    assert said == [f"waiting for clients: 0 of 2 are here{named}"]
