"""`doctor` of both programs: what is wrong with a machine is found before a run, and said in one line each."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from client import handshake
from client.doctor import CHECKS as CLIENT_CHECKS
from client.doctor import ClientMachine
from client.state_folder import in_use
from common.doctor import machine
from common.doctor.findings import Finding, examine, ok, tell
from common.doctor.machine import Machine
from common.experiment.files import load_experiment
from server.doctor import CHECKS as SERVER_CHECKS
from server.doctor import ServerMachine
from server.keys import folder as keys_module
from server.keys.folder import Keys
from server.link.hub import Hub
from server.model.finished import FinishedModel
from server.runs.run_folder import RunFolder
from tests.harness.processes import free_port
from tests.harness.witness import load

SCHEMA = """
name: clinics
rounds: 2
clients: 2
task: {name: tabular, target: ill, classes: "no | yes", columns: {age: 0..120}}
algorithm: {name: sparse_proxskip, density: 0.5, learning_rate: 0.5}
"""
TABLE = "age,ill\n34,no\n70,yes\n50,no\n"


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PAUSE_SECONDS", 0.01)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = Keys.init(tmp_path / "keys", ["127.0.0.1"], free_port())
    made.add("ward")
    return made


@pytest.fixture
def server(keys: Keys, tmp_path: Path) -> ServerMachine:
    return ServerMachine(folder=tmp_path / "runs", keys=keys.folder, listen=None)


@pytest.fixture
def hub(keys: Keys) -> Iterator[Hub]:
    with Hub(keys.address, keys) as hub:
        yield hub


@pytest.fixture
def client(keys: Keys, tmp_path: Path) -> ClientMachine:
    table, schema = tmp_path / "ward.csv", tmp_path / "schema.yaml"
    table.write_text(TABLE)
    schema.write_text(SCHEMA)
    return ClientMachine(
        folder=tmp_path / "state",
        target=str(keys.folder / "bundles" / "ward.join"),
        insecure=False,
        server=None,
        key=None,
        partition=None,
        data=table,
        experiment=str(schema),
        state=tmp_path / "state",
        memory_limit_mb=100_000,
    )


def of_server(server: ServerMachine, check: str) -> Finding:
    (found,) = examine(server, [one for one in SERVER_CHECKS if one.__name__ == check.replace(" ", "_")])
    return found


def of_client(client: ClientMachine, check: str) -> Finding:
    (found,) = examine(client, [one for one in CLIENT_CHECKS if one.__name__ == check.replace(" ", "_")])
    return found


def levels(findings: list[Finding]) -> dict[str, str]:
    return {one.check: one.level for one in findings}


def doctor(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", program, "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd)


def test_a_good_server_is_well_but_for_a_bundle_that_is_still_there(keys: Keys, tmp_path: Path) -> None:
    finished = doctor("server", "--keys", "keys", "--json", cwd=tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    told = json.loads(finished.stdout)
    assert list(told) == ["program", "version", "problems", "warnings", "findings"]
    assert (told["program"], told["problems"], told["warnings"]) == ("proxskip-server", 0, 1)
    assert all(list(one) == ["check", "level", "found", "remedy"] for one in told["findings"])
    assert [one["found"] for one in told["findings"] if one["level"] != "ok"] == ["still here: keys/bundles/ward.join"]
    assert all(one["remedy"] for one in told["findings"] if one["level"] != "ok")
    assert not (tmp_path / "runs").exists()  # it looks, and leaves nothing


def test_a_good_client_is_well_and_hears_no_secret(client: ClientMachine, keys: Keys, hub: Hub, tmp_path: Path) -> None:
    arguments = ["--data", str(client.data), "--experiment", str(client.experiment), "--state", "state"]
    finished = doctor("client", str(client.target), *arguments, cwd=tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.endswith("all is well\n")
    secret = [line.strip() for line in Path(str(client.target)).read_text().splitlines() if len(line.strip()) > 40]
    assert not any(line in finished.stdout for line in secret)


def test_a_problem_is_exit_code_one_and_a_table_says_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        finished = doctor("server", "--listen", address, cwd=tmp_path)
    assert (finished.returncode, finished.stderr) == (1, "")
    assert "how to fix" in finished.stdout
    assert "a server may be running" in finished.stdout
    assert finished.stdout.endswith("1 problem\n")


def test_what_cannot_be_checked_is_a_line_and_the_others_go_on(tmp_path: Path) -> None:
    def impossible(_: Machine) -> Finding:
        raise RuntimeError("no\x1b[2J such\nthing")

    def next_one(_: Machine) -> Finding:
        return ok("here")

    first, second = examine(Machine(folder=tmp_path), [impossible, next_one])
    assert (first.check, first.level) == ("impossible", "problem")
    assert "RuntimeError" in first.found
    assert first.found.isprintable()
    assert (second.check, second.found) == ("next one", "here")


def test_packages_that_do_not_go_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needed = ["torch~=1.0", "no-such-package-of-ours>=1", 'matplotlib<1; extra == "figures"', "click>=8"]
    monkeypatch.setattr(metadata, "requires", lambda _: needed)
    found = machine.packages(Machine(folder=tmp_path))
    assert found.level == "problem"
    torch_wrong, missing = found.found.split("; ")
    assert torch_wrong.startswith("torch is 2.")
    assert missing == "no-such-package-of-ours is not installed"


def test_a_clock_that_has_lost_its_power(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = tmp_path / "machine.py"
    installed.touch()
    monkeypatch.setattr(machine, "__file__", str(installed))
    assert machine.clock(Machine(folder=tmp_path)).level == "ok"
    os.utime(installed, (time.time() + 1e6, time.time() + 1e6))
    assert machine.clock(Machine(folder=tmp_path)).level == "problem"


def test_a_device_that_is_not_here(tmp_path: Path) -> None:
    (found,) = examine(Machine(folder=tmp_path, device="cuda:9"), [machine.device])
    assert found.level == "problem"
    assert "--device cuda:9 cannot be used" in found.found


def test_a_folder_that_cannot_be_written_to() -> None:
    found = machine.disk_speed(Machine(folder=Path("/proc/self")))
    assert found.level == "problem"
    assert "cannot write to /proc/self" in found.found


@pytest.mark.parametrize(("days", "level"), [(-2, "problem"), (10, "warning"), (40, "ok")])
def test_a_certificate_that_expires(
    days: int, level: str, server: ServerMachine, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "SERVER_DAYS", days)
    Keys.init(keys.folder, ["127.0.0.1"], free_port())
    found = of_server(server, "certificate")
    assert found.level == level
    assert ("keys init" in found.remedy) == (level != "ok")


@pytest.mark.parametrize("days", [-2, 10])
def test_an_authority_that_expires_is_seen_from_both_ends(
    days: int, tmp_path: Path, client: ClientMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "AUTHORITY_DAYS", days)
    old = Keys.init(tmp_path / "old", ["127.0.0.1"], free_port())
    bundle = old.add("ward")
    level = "problem" if days < 0 else "warning"
    assert of_server(ServerMachine(folder=tmp_path, keys=old.folder, listen=None), "authority").level == level
    assert of_client(replace(client, target=str(bundle)), "certificate").level == level


def test_keys_that_others_may_read(server: ServerMachine, keys: Keys) -> None:
    (keys.folder / "server.key").chmod(0o644)
    found = of_server(server, "secrets")
    assert found.level == "problem"
    assert "server.key" in found.found
    subprocess.run(["chmod", "-R", "go=", keys.folder], check=True)  # as the remedy says
    assert found.remedy == f"chmod -R go= {keys.folder}"
    assert of_server(server, "secrets").level == "warning"  # the bundle


def test_keys_that_do_not_go_together(server: ServerMachine, keys: Keys, tmp_path: Path) -> None:
    other = Keys.init(tmp_path / "other", ["127.0.0.1"], 9092)
    ours = (keys.folder / "server.key").read_bytes()
    (keys.folder / "server.key").write_bytes((other.folder / "server.key").read_bytes())
    assert "is not the key of" in of_server(server, "certificate").found
    (keys.folder / "server.key").write_bytes(ours)
    (keys.folder / "ca.crt").write_bytes((other.folder / "ca.crt").read_bytes())
    assert "is not signed by" in of_server(server, "certificate").found


def test_a_name_that_the_certificate_does_not_have(server: ServerMachine, keys: Keys) -> None:
    (keys.folder / "address").write_text("elsewhere.example:9092\n")
    found = of_server(server, "host name")
    assert found.level == "problem"
    assert "does not name elsewhere.example" in found.found


def test_without_clients_nobody_may_join_and_without_keys_that_is_all_that_is_said(
    server: ServerMachine, keys: Keys, tmp_path: Path
) -> None:
    keys.revoke("ward")
    assert of_server(server, "keys").level == "warning"
    nowhere = examine(replace(server, keys=tmp_path / "nowhere"), SERVER_CHECKS)
    assert [one.check for one in nowhere if one.level == "problem"] == ["keys"]
    assert not {"secrets", "certificate", "authority", "host name"} & levels(nowhere).keys()


def test_what_has_become_of_runs(server: ServerMachine) -> None:
    experiment = load_experiment("digits")
    finished, left, damaged, busy = (
        RunFolder.create(server.folder / name, experiment, "digits") for name in ("a", "b", "c", "d")
    )
    problem = load(experiment)
    finished.save_model(FinishedModel.of(experiment, problem, problem.initial_state(), None))
    with busy.locked():
        found = of_server(server, "runs")
        assert found.found == f"1 finished, 1 under way, 2 interrupted: {left.path} and {damaged.path}"
        assert f"--resume {left.path}" in found.remedy
        (damaged.path / "rounds.jsonl").write_text("nonsense\n")
        assert f"1 unreadable: {damaged.path}" in of_server(server, "runs").found


def test_the_server_that_a_client_looks_for(client: ClientMachine, keys: Keys, tmp_path: Path) -> None:
    gone = of_client(client, "server")
    assert (gone.level, gone.found) == ("problem", f"{keys.address} cannot be reached: Connection refused")
    foreign = Keys.init(tmp_path / "foreign", ["127.0.0.1"], 9092)
    with Hub(keys.address, foreign):
        wrong = of_client(client, "server")
    assert wrong.level == "problem"
    assert "its certificate is not good for this join bundle" in wrong.found
    with Hub(keys.address, keys):
        assert of_client(client, "server").level == "ok"
        in_the_clear = replace(client, target=keys.address, insecure=True)
        assert "it speaks TLS" in of_client(in_the_clear, "server").found


def test_a_bundle_that_is_damaged_or_for_others_to_read(client: ClientMachine) -> None:
    bundle = Path(str(client.target))
    bundle.chmod(0o644)
    assert "others may read" in of_client(client, "bundle").found
    bundle.write_text("nonsense")
    found = levels(examine(replace(client, experiment=None, data=None), CLIENT_CHECKS))
    assert found["bundle"] == "problem"
    assert not {"certificate", "server"} & found.keys()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TABLE.replace("70", "170"), "row 2: age = '170' is beyond its range"),
        (TABLE.replace("age", "years"), "has no column 'age'"),
        (TABLE.replace("yes", ""), "ill = '' is missing"),
    ],
)
def test_data_that_does_not_fit_is_found_without_a_run(text: str, words: str, client: ClientMachine) -> None:
    assert of_client(client, "data").level == "ok"
    assert client.data is not None
    client.data.write_text(text)
    found = of_client(client, "data")
    assert (found.level, found.remedy) == ("problem", "mend the data, or ask the server's operator for another schema")
    assert words in found.found


def test_data_that_is_a_part_of_a_public_set(client: ClientMachine) -> None:
    public = replace(client, experiment="digits", data=None, partition="0/10")
    assert "650 weights" in of_client(public, "data").found
    assert "--partition" in of_client(replace(public, partition=None), "data").found


def test_a_state_folder(client: ClientMachine) -> None:
    folder = client.folder
    assert of_client(client, "state").found == f"{folder} is to be made"
    with in_use(folder, ["ward"]):
        assert "a process is ward" in of_client(client, "state").found
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert of_client(client, "state").level == "ok"
    folder.chmod(0o755)
    assert of_client(client, "state").remedy == f"chmod 700 {folder}"
    assert of_client(replace(client, state=None), "state").level == "warning"


def test_a_memory_limit_that_is_too_low(client: ClientMachine) -> None:
    assert of_client(client, "memory limit").level == "ok"
    assert of_client(replace(client, memory_limit_mb=10), "memory limit").level == "problem"


def test_an_address_that_is_none(server: ServerMachine) -> None:
    found = of_server(replace(server, listen="nonsense"), "port")
    assert (found.level, found.found) == ("problem", "nonsense is no HOST:PORT")


def test_a_long_path_is_shown_whole_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = "keys/" + 4 * "a-long-name-of-a-client-" + ".join"
    tell("proxskip-server", [Finding(check="secrets", level="warning", found=f"still here: {path}")], as_json=False)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert path in "".join(shown.split())
