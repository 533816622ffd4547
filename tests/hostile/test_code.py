"""A server that wants its clients to run code: they run their own, and what their owners name; nothing ends them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Context

import client.app
from client.app import make_app
from common.errors import UserError
from common.experiment.files import told_experiment
from common.messages.messages_pb2 import FromServer
from common.say import sparing
from tests.harness.hostile_server import HostileServer, has_answered, saying, serving, task, welcome
from tests.harness.processes import client_process, wait_until
from tests.hostile.test_reading import context_of, introduction, reason_of

MODULE = """
import pathlib, sys
pathlib.Path("was-here").touch()
from dataclasses import dataclass
from common.tasks.digits import Digits

@dataclass(frozen=True, kw_only=True)
class Task(Digits):
    def load(self, data, *, clients, seed, device):
        {does}
"""


def experiment_with(task_name: str = "digits", algorithm: str = "sparse_proxskip") -> str:
    return (
        f"name: x\nrounds: 1\nclients: 2\ntask: {{name: '{task_name}'}}\n"
        f"algorithm: {{name: '{algorithm}', learning_rate: 0.5}}\n"
    )


@pytest.mark.parametrize("text", [experiment_with("deploy:Task"), experiment_with(algorithm="deploy:Task")])
def test_what_nobody_allowed_is_not_imported(text: str, tmp_path: Path) -> None:
    (tmp_path / "deploy.py").write_text(MODULE.format(does="raise SystemExit"))
    server, log = HostileServer(saying(welcome(text), task(99))), tmp_path / "log"
    arguments = ("--insecure", "--partition", "0/2", "--allow-task", "deploy:Other")
    with serving(server) as address, client_process(address, *arguments, log=log, cwd=tmp_path):
        wait_until(has_answered(server))
    assert "'deploy:Task' is not allowed by this client's owner (--allow-" in server.answers[0].failure.reason
    assert not (tmp_path / "was-here").exists()


def test_what_is_allowed_by_name_is_imported_and_cannot_end_the_client(tmp_path: Path) -> None:
    """Also from where the client was started, where a folder has the name of a package of ours."""
    (tmp_path / "deploy.py").write_text(MODULE.format(does="raise SystemExit(3)"))
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(4)\n")
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "__init__.py").write_text("raise SystemExit(5)\n")

    def one_after_the_other(frames: Iterator[bytes]) -> Iterator[FromServer]:
        for number, module in enumerate(("deploy", "leaving")):
            next(frames)  # Hello, or the answer
            yield welcome(experiment_with(f"{module}:Task"))
            yield task(number)
        for _ in frames:
            pass

    server, log = HostileServer(one_after_the_other), tmp_path / "log"
    arguments = ("--insecure", "--partition", "0/2", "--allow-task", "deploy:Task", "--allow-task", "leaving:Task")
    with (
        serving(server) as address,
        client_process(address, *arguments, log=log, cwd=tmp_path) as process,
    ):
        wait_until(lambda: len(server.answers) == 2)
        assert process.poll() is None
    reasons = [one.failure.reason for one in server.answers]
    assert "an unexpected SystemExit" in reasons[0]
    assert "cannot import 'leaving:Task'; its log says why" in reasons[1]
    assert (tmp_path / "was-here").exists()
    assert "SystemExit(4)" in log.read_text()


def test_an_algorithm_is_allowed_by_its_name_too() -> None:
    text = experiment_with(algorithm="strategies.fedavg:FedAvg")
    assert told_experiment(text, [], ["strategies.fedavg:FedAvg"]).algorithm.learning_rate == 0.5
    with pytest.raises(UserError, match=r"--allow-algorithm strategies\.fedavg:FedAvg"):
        told_experiment(text, [], ["strategies.fedavg:Other"])


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_whatever_a_tasks_code_raises_is_answered(kind: type[BaseException]) -> None:
    def participant(_: Context) -> None:
        raise kind

    app = make_app(participant, lambda _: None)  # type: ignore[arg-type]
    assert (
        reason_of(app(introduction(), context_of("", {})))
        == f"an unexpected {kind.__name__}; the client's log says more"
    )


def test_a_traceback_is_printed_once_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.app, "_tell_traceback", sparing(client.app._write_traceback, 1, 60.0))

    def participant(_: Context) -> None:
        raise ZeroDivisionError("of the client's")

    app = make_app(participant, lambda _: None)  # type: ignore[arg-type]
    for _ in range(5):
        assert "of the client's" not in reason_of(app(introduction(), context_of("", {})))
    assert capsys.readouterr().err.count("Traceback") == 1
