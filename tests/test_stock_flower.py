"""Our apps on Flower's own programs, the oldest and the newest: a SuperLink with SuperNodes, and its simulation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.experiment.files import load_experiment
from server.deploy.local_clients import leaving
from server.simulation.simulation import Simulation
from tests.harness.models import linear_model
from tests.harness.processes import free_port, is_listening, wait_until
from tests.harness.witness import CPU, load

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parent.parent
SETTINGS = ["clients=2", "rounds=3", "schedule.period=4"]
FLOWERS = {"oldest": "flwr[simulation]==1.39.*", "newest": "flwr[simulation]"}
FIRST_WITH_ONE_PORT = (1, 40)  # before that a SuperLink has a port of its own for SuperNodes


@dataclass(frozen=True)
class Environment:
    """A virtual environment with a Flower of its own."""

    folder: Path

    def run(self, *arguments: str) -> str:
        """Run its Python; return what it says."""
        command = [str(self.folder / "bin" / "python"), *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=500).stdout

    @property
    def has_one_port(self) -> bool:
        """Tell whether a SuperLink hears SuperNodes, over HTTP, where it hears everybody else."""
        version = self.run("-c", "from importlib.metadata import version; print(version('flwr'))")
        return tuple(map(int, version.split(".")[:2])) >= FIRST_WITH_ONE_PORT

    @contextmanager
    def program(self, name: str, *arguments: str, home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run one of Flower's programs, with a home of its own; all that it starts ends with it."""
        home.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_LOG_LEVEL": "INFO",
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
        }
        with log.open("wb") as file:
            process = subprocess.Popen(
                [str(self.folder / "bin" / name), *arguments], stdout=file, stderr=file, env=environment, cwd=REPOSITORY
            )
        with leaving(process, 20):
            yield process


@pytest.fixture(scope="module", params=FLOWERS)
def environment(request: pytest.FixtureRequest) -> Environment:
    """Make an environment, or bring up to date the one of the last time, in the cache of pytest.

    What it has of its own is Flower and what that needs, ray among it, within our own bounds. All else, torch above
    all, is taken from the environment of these tests, which a .pth file puts behind it. The apps come with `flwr run`.
    """
    made = Environment(request.config.cache.mkdir(f"flower-{request.param}"))
    subprocess.run([sys.executable, "-m", "venv", str(made.folder)], check=True)
    packages = Path(made.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    behind, bounds = packages / "environment-of-the-tests.pth", made.folder / "bounds.txt"
    behind.unlink(missing_ok=True)  # pip is to see what is here alone
    bounds.write_text("\n".join(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]))
    made.run("-m", "pip", "install", "--quiet", "--upgrade", "--constraint", str(bounds), FLOWERS[request.param])
    behind.write_text(sysconfig.get_path("purelib"))
    return made


@contextmanager
def super_link(environment: Environment, *options: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Run a SuperLink; give the home in which `flwr` finds it under the name `here`, and where SuperNodes find it."""
    port, home, log = free_port(), folder / "home", folder / "super-link.log"
    home.mkdir()
    address = for_nodes = f"127.0.0.1:{port}"
    options = ("--insecure", "--disable-runtime-dependency-installation", "--host", "127.0.0.1", *options)
    if not environment.has_one_port:
        for_nodes = f"127.0.0.1:{free_port()}"
        options = (*options, "--fleet-api-address", for_nodes)
    connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    (home / "config.toml").write_text(connection)
    with environment.program("flower-superlink", *options, "--port", str(port), home=home, log=log):
        wait_until(lambda: is_listening(port))
        yield home, for_nodes


@contextmanager
def super_node(environment: Environment, address: str, index: int, folder: Path) -> Iterator[None]:
    node_config = f'partition="{index}/2" state="{folder / "state"}"'
    options = ("--insecure", "--superlink", address, "--host", "127.0.0.1", "--port", str(free_port()))
    home, log = folder / f"home-{index}", folder / f"node-{index}.log"
    with environment.program("flower-supernode", *options, "--node-config", node_config, home=home, log=log):
        yield


def flwr_run(environment: Environment, home: Path, folder: Path, **configuration: str) -> None:
    """Run `flwr run .` and wait for the final model, which must be the simulator's."""
    output, log = folder / "run", folder / "flwr-run.log"
    configuration |= {"settings": " ".join(SETTINGS), "output": str(output)}
    given = " ".join(f'{key}="{value}"' for key, value in configuration.items())
    with environment.program("flwr", "run", ".", "here", "--run-config", given, home=home, log=log):
        wait_until(lambda: (output / "model.safetensors").exists(), seconds=180)
    experiment = load_experiment("digits", SETTINGS)
    simulation = Simulation(experiment, load(experiment), CPU)
    list(simulation.rounds())
    kept = linear_model(output)
    assert float((kept - simulation.kept().model).norm() / kept.norm()) < 1e-5
    assert [json.loads(line)["round"] for line in (output / "rounds.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_flwr_run_with_a_super_link_and_super_nodes(environment: Environment, tmp_path: Path) -> None:
    with (
        super_link(environment, folder=tmp_path) as (home, address),
        super_node(environment, address, 0, tmp_path),
        super_node(environment, address, 1, tmp_path),
    ):
        flwr_run(environment, home, tmp_path)


def test_flwr_run_in_flowers_simulation(environment: Environment, tmp_path: Path) -> None:
    with super_link(environment, "--simulation", folder=tmp_path) as (home, _):
        flwr_run(environment, home, tmp_path, state=str(tmp_path / "state"))
