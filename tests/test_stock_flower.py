"""Side by side with Flower's own programs: SuperNodes at our server, our apps at a SuperLink."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file

from common.experiment.files import load_experiment
from server.deploy.local_clients import leaving
from server.link.hub import Hub
from server.simulation.simulation import Simulation
from tests.harness.processes import client_process, deploy, free_port, is_listening, wait_until
from tests.harness.witness import CPU, load

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parent.parent
SETTINGS = ["clients=2", "rounds=3", "schedule.period=4"]


@contextmanager
def flower(program: str, *arguments: str, home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of Flower's programs, with a home of its own; all that it starts ends with it."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(BIN / program), *arguments], stdout=file, stderr=file, env=environment, cwd=REPOSITORY
        )
    with leaving(process, 20):
        yield process


def super_node(address: str, index: int, folder: Path) -> tuple[str, ...]:
    node_config = f'partition="{index}/2" state="{folder / "state"}"'
    port = str(free_port())
    options = ("--insecure", "--superlink", address, "--host", "127.0.0.1", "--port", port)
    return ("flower-supernode", *options, "--node-config", node_config)


def test_a_stock_super_node_and_a_resident_node_in_one_run(tmp_path: Path) -> None:
    experiment = load_experiment("digits", SETTINGS)
    with (
        Hub("127.0.0.1:0") as hub,
        client_process(hub.address, "--insecure", "--partition", "0/2", log=tmp_path / "resident.log"),
        flower(*super_node(hub.address, 1, tmp_path), home=tmp_path / "home", log=tmp_path / "node.log"),
    ):
        run = deploy(hub, experiment)
    simulation = Simulation(experiment, load(experiment), CPU)
    list(simulation.rounds())
    assert run.counted == [2, 2, 2]
    assert float((run.model - simulation.state.model).norm() / run.model.norm()) < 1e-5


@contextmanager
def super_link(*options: str, folder: Path) -> Iterator[Path]:
    """Run a SuperLink; give the home in which `flwr` finds it under the name `here`."""
    port, home, log = str(free_port()), folder / "home", folder / "super-link.log"
    home.mkdir()
    connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(connection)
    options = ("--insecure", "--disable-runtime-dependency-installation", *options)
    with flower("flower-superlink", *options, "--host", "127.0.0.1", "--port", port, home=home, log=log):
        wait_until(lambda: is_listening(int(port)))
        yield home


def flwr_run(home: Path, folder: Path, **configuration: str) -> None:
    """Run `flwr run .` and wait for the final model, which must be the simulator's."""
    output = folder / "run"
    configuration |= {"settings": " ".join(SETTINGS), "output": str(output)}
    given = " ".join(f'{key}="{value}"' for key, value in configuration.items())
    with flower("flwr", "run", ".", "here", "--run-config", given, home=home, log=folder / "flwr-run.log"):
        wait_until(lambda: (output / "model.safetensors").exists(), seconds=180)
    experiment = load_experiment("digits", SETTINGS)
    simulation = Simulation(experiment, load(experiment), CPU)
    list(simulation.rounds())
    kept = load_file(output / "model.safetensors")["model"]
    assert float((kept - simulation.kept().model).norm() / kept.norm()) < 1e-5
    assert [json.loads(line)["round"] for line in (output / "rounds.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_flwr_run_with_stock_parts_only(tmp_path: Path) -> None:
    hub = f"127.0.0.1:{free_port()}"
    nodes = [super_node(hub, index, tmp_path) for index in range(2)]
    with (
        super_link("--hub-api-address", hub, folder=tmp_path) as home,
        flower(*nodes[0], home=tmp_path / "home-0", log=tmp_path / "node-0.log"),
        flower(*nodes[1], home=tmp_path / "home-1", log=tmp_path / "node-1.log"),
    ):
        flwr_run(home, tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs sparse-proxskip[simulation]")
def test_flowers_own_simulation_runs_the_same_apps(tmp_path: Path) -> None:
    hub = f"127.0.0.1:{free_port()}"
    with super_link("--simulation", "--hub-api-address", hub, folder=tmp_path) as home:
        flwr_run(home, tmp_path, state=str(tmp_path / "state"))
