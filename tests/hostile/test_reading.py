"""A server that wants to know what is in its clients' files: it hears that there is none for it, and never a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from client.app import Resident, app, make_app
from common.messages.flower import begin_run, set_message_id
from common.messages.messages import message_to, pack_introduction_question
from tests.harness.hostile_server import HostileServer, has_answered, saying, serving, task, welcome
from tests.harness.processes import client_process, wait_until

PRIVATE = "hunter2"
END = "algorithm: {name: sparse_proxskip, learning_rate: 0.5}\n"
TABLE = f"name: x\nrounds: 1\nclients: 1\ntask: {{name: tabular, target: age, columns: {{pay: 0..9}}}}\n{END}"
PICTURES = f"name: x\nrounds: 1\nclients: 1\ntask: {{name: image_folder, classes: [a, b]}}\n{END}"
LETTERS = f"name: x\nrounds: 1\nclients: 1\ntask: {{name: femnist, source: femnist}}\n{END}"
OWN = f"name: x\nrounds: 1\nclients: 1\ntask: {{name: 'tests.harness.talkative:Talkative'}}\n{END}"


def introduction() -> Message:
    begin_run()
    message = message_to(1, "introduce", pack_introduction_question())
    set_message_id(message, "1")
    return message


def context_of(experiment: str, node: dict[str, str], **run: str) -> Context:
    return Context(
        run_id=1,
        node_id=1,
        node_config=dict(node),
        state=RecordDict(),
        run_config={"experiment": experiment, "run": "r", **run},
    )


def reason_of(reply: Message) -> str:
    assert reply.has_error(), "it takes part"
    return str(reply.error.reason)


def reason_for(experiment: str, said: list[str], **node: str) -> str:
    """Return what a server hears from a client of ours that cannot take part."""
    return reason_of(make_app(Resident(), said.append)(introduction(), context_of(experiment, {"name": "a", **node})))


@pytest.mark.parametrize("line", ["password: hunter2", '{"key": "hunter2"}', "root:hunter2:19000:0:99999:7:::"])
def test_a_path_is_no_experiment_for_a_super_node(line: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text(f"{line}\n")
    node = {"partition": "0/2", "state": str(tmp_path / "state")}
    reason = reason_of(app(introduction(), context_of(str(secret), node)))
    assert "unknown experiment" in reason
    assert PRIVATE not in reason


def test_a_path_is_no_experiment_for_our_own_client(tmp_path: Path) -> None:
    secret, log = tmp_path / "secret.yaml", tmp_path / "log"
    secret.write_text("password: hunter2\n")
    server = HostileServer(saying(welcome(str(secret)), task(99)))
    with serving(server) as address, client_process(address, "--insecure", "--partition", "0/2", log=log):
        wait_until(has_answered(server))
    assert "unknown experiment" in server.answers[0].failure.reason
    assert PRIVATE not in server.answers[0].failure.reason + log.read_text()


def test_a_shipped_experiment_by_its_name_is_one(tmp_path: Path) -> None:
    node = {"partition": "0/2", "state": str(tmp_path / "state")}
    assert not app(introduction(), context_of("digits", node, settings="clients=2")).has_error()


def test_a_simulated_node_takes_its_folder_from_the_run(tmp_path: Path) -> None:
    node = {"partition-id": "0", "num-partitions": "2"}
    for _ in range(2):
        assert not app(
            introduction(), context_of("digits", node, settings="clients=2", state=str(tmp_path))
        ).has_error()
    assert (tmp_path / "client-0.identity").exists()


def test_a_server_does_not_say_where_a_super_node_writes(tmp_path: Path) -> None:
    reply = app(introduction(), context_of("digits", {"partition": "0/2"}, settings="clients=2", state=str(tmp_path)))
    assert "give it a folder" in reason_of(reply)
    assert not list(tmp_path.iterdir())


def table(content: bytes, name: str = "hunter2.csv") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def letters(folder: Path) -> None:
    for part in ("train", "test"):
        (folder / "femnist" / part).mkdir(parents=True)
        content = {"user_data": {"u": {"x": [PRIVATE], "y": [1]}}}
        (folder / "femnist" / part / "a.json").write_text(json.dumps(content))


def picture(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "hunter2.jpg").write_bytes(b"no picture")


# What is wrong with a client's data, and the experiment in which it shows.
BROKEN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a value": (TABLE, table(b"age,pay\n1,hunter2\n")),
    "the header": (TABLE, table(b"hunter2,pay\n1,2\n")),
    "a file's name": (TABLE, table(b"", "hunter2.npz")),
    "a line": (TABLE, table(b"age,pay\n1,2,hunter2\n")),
    "no rows": (TABLE, table(b"age,pay\n")),
    "bytes": (TABLE, table(b"age,pay\n\xff\xfe")),
    "nothing": (TABLE, lambda folder: None),
    "a class": (PICTURES, lambda folder: (folder / PRIVATE).mkdir()),
    "a picture": (PICTURES, picture),
    "a public data set": (LETTERS, letters),
    "a task of its own": (OWN, lambda folder: None),
}


@pytest.mark.parametrize("what", BROKEN)
def test_nothing_of_a_clients_data_is_told_to_the_server(what: str, tmp_path: Path) -> None:
    experiment, write = BROKEN[what]
    folder = tmp_path / f"of-{PRIVATE}"
    folder.mkdir()
    write(folder)
    said: list[str] = []
    part = "0/1" if experiment == LETTERS else ""
    own = "tests.harness.talkative:Talkative"
    reason = reason_for(experiment, said, data=str(folder), partition=part, **{"allow-task": own})
    assert PRIVATE not in reason
    assert str(tmp_path) not in reason
    assert PRIVATE in said[0], "its owner is told"


def test_nothing_of_a_clients_memory_is_told_to_the_server(tmp_path: Path) -> None:
    (tmp_path / "a.memory.0").write_text(PRIVATE)
    said: list[str] = []
    text = f"name: x\nrounds: 1\nclients: 1\ntask: {{name: digits}}\n{END}"
    reason = reason_for(text, said, state=str(tmp_path), partition="0/1")
    assert str(tmp_path) not in reason
    assert "a.memory.0 is not a client's memory" in said[0]


def test_want_of_memory_is_told_without_what_it_was_for(tmp_path: Path) -> None:
    def participant(_: Context) -> None:
        raise torch.OutOfMemoryError(f"of {PRIVATE}")

    reply = make_app(participant, lambda _: None)(introduction(), context_of("", {}))  # type: ignore[arg-type]
    assert reply.error.reason == "this client has not enough memory for that (see --memory-limit)"
