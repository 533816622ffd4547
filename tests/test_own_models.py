"""Users' own models deployed: README's example, machines with another base, and the processes that read ahead."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from server.deploy.local_clients import leaving
from tests.harness.pages import FENCE, REPOSITORY
from tests.harness.processes import (
    alive,
    client_process,
    descendants_of,
    free_port,
    lines_in,
    proxskip_server,
    wait_until,
)

KINDS = ("benign", "malignant")
SLIDES = "  name: tumours:Tumours\n  kinds: [benign, malignant]\n  batch_size: 6\n"
ALGORITHM = "algorithm: {name: sparse_proxskip, density: 0.3, learning_rate: 0.05}\n"


def documented() -> str:
    blocks: list[tuple[str, str]] = FENCE.findall((REPOSITORY / "README.md").read_text())
    return next(text for language, text in blocks if language == "python" and "TorchTask" in text)


def experiment(task: str, rounds: int = 8) -> str:
    return f"name: own\nrounds: {rounds}\nclients: 2\ntask:\n{task}{ALGORITHM}schedule: {{period: 6}}\n"


def write_slides(folder: Path) -> None:
    """Write small slides, those of one kind brighter; one clinic has none of it to train on."""
    generator = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 6)):
        for kind in KINDS[:1] if folder.name == "clinic-b" and part == "train" else KINDS:
            own = folder / part / kind
            own.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 128, (16, 16, 3), dtype=np.uint8) + 96 * KINDS.index(kind)
                Image.fromarray(pixels.astype(np.uint8)).save(own / f"{number}.png")


class Machines:
    """A server and its clients, each a process in a folder of its own."""

    def __init__(self, folder: Path, text: str) -> None:
        self._folder, self._port = folder, free_port()
        self.server, self.output = self.machine("server"), folder / "run"
        (self.server / "own.yaml").write_text(text)

    def machine(self, name: str) -> Path:
        """Return the folder of a machine."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return folder

    @contextmanager
    def serving(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start the server."""
        command = [sys.executable, "-m", "server", "run", "own.yaml", "--insecure", "--output", str(self.output)]
        with (self.server / "log").open("wb") as log:
            listen = ("--listen", f"127.0.0.1:{self._port}")
            process = subprocess.Popen([*command, *listen], cwd=self.server, stdout=log, stderr=log)
        with leaving(process, 20):
            yield process

    def client(self, name: str, task: str, *, data: Path | None = None) -> ExitStack:
        """Start a client, in a context that ends it."""
        place = self.machine(name)
        address, named = f"127.0.0.1:{self._port}", ("--name", name, "--data", str(data or place))
        stack = ExitStack()
        self.process = stack.enter_context(
            client_process(address, "--insecure", *named, "--allow-task", task, log=place / "log", cwd=place)
        )
        return stack

    def log(self, name: str) -> str:
        """Return what a machine has said, in one line."""
        return " ".join((self.machine(name) / "log").read_text().split())


@pytest.fixture(autouse=True)
def _our_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_the_example_of_the_readme_has_25_lines_and_learns_over_the_link(tmp_path: Path) -> None:
    code = documented()
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    machines = Machines(tmp_path, experiment(SLIDES))
    for name in ("server", "clinic-a", "clinic-b"):
        (machines.machine(name) / "tumours.py").write_text(code)
    for clinic in ("clinic-a", "clinic-b"):
        write_slides(tmp_path / clinic)
    with (
        machines.serving() as server,
        machines.client("clinic-a", "tumours:Tumours"),
        machines.client("clinic-b", "tumours:Tumours"),
    ):
        assert server.wait(120) == 0, machines.log("server")
    rounds = [json.loads(line) for line in (machines.output / "rounds.jsonl").read_text().splitlines()]
    assert rounds[-1]["metrics"]["test_accuracy"] > 0.8
    model = load_file(machines.output / "model.safetensors")
    assert model["2.weight"].shape == (2, 512)
    assert "0.1.running_mean" in model


TUNED = """
from dataclasses import dataclass

import torch
from tests.harness.own_models import FineTuned

@dataclass(frozen=True, kw_only=True)
class Tuned(FineTuned):
    def module(self):
        network = super().module()
        with torch.no_grad():
            network.first.weight.add_({})
        return network
"""


def test_a_client_with_another_base_is_left_out_and_both_sides_say_why(tmp_path: Path) -> None:
    machines = Machines(tmp_path, experiment("  name: tuned:Tuned\n", rounds=2))
    for name, base in {"server": 0, "clinic-a": 0, "clinic-b": 1, "clinic-c": 0}.items():
        (machines.machine(name) / "tuned.py").write_text(TUNED.format(base))
    with machines.serving() as server, machines.client("clinic-a", "tuned:Tuned"):
        with machines.client("clinic-b", "tuned:Tuned"):
            what = "the part of the model that does not travel is not the server's"
            wait_until(lambda: f"clinic-b is left out: there {what}" in machines.log("server"))
            wait_until(lambda: f"here {what}: install the same pretrained weights" in machines.log("clinic-b"))
        with machines.client("clinic-c", "tuned:Tuned"):
            assert server.wait(120) == 0, machines.log("server")
    saved = load_file(machines.output / "model.safetensors")
    assert "last.weight" in saved
    assert "first.weight" not in saved


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="it looks for processes there")
@pytest.mark.parametrize("signal", ["terminate", "kill"])
def test_the_processes_that_read_ahead_end_with_their_client(signal: str, tmp_path: Path) -> None:
    task = "tests.harness.own_models:Points"
    machines = Machines(tmp_path, experiment(f"  name: {task}\n  loader_workers: 2\n", rounds=100_000))
    with machines.serving(), machines.client("clinic-a", task), machines.client("clinic-b", task):
        wait_until(lambda: lines_in(machines.output / "rounds.jsonl") > 0, 120)
        readers = descendants_of(machines.process.pid)
        assert len(readers) >= 2
        getattr(machines.process, signal)()
        wait_until(lambda: not any(alive(one) for one in readers))


def test_a_mistake_is_the_last_line_of_a_simulation_and_exit_code_2(tmp_path: Path) -> None:
    code = documented().replace("Image.open(file)", "Image.open(file.with_suffix('.tif'))")
    (tmp_path / "tumours.py").write_text(code)
    (tmp_path / "own.yaml").write_text(experiment(SLIDES))
    for clinic in ("clinic-a", "clinic-b"):
        write_slides(tmp_path / "data" / clinic)
    found = proxskip_server("simulate", "own.yaml", "--data", "data", "--output", "run", cwd=tmp_path)
    assert found.returncode == 2
    assert "Traceback" in found.stderr
    last = found.stderr.strip().splitlines()[-1]
    assert last.startswith("error: Tumours.dataset(train) of clinic-a: FileNotFoundError: ")
    assert last.endswith(f"(tumours.py, line {code[: code.index('Image.open')].count(chr(10)) + 1})")
