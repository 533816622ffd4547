"""What a client takes in memory beyond bare training of the same module, in models: each in a process of its own.

`python -m bench.memory` prints it, with names of methods behind it for these. A batch is small here, as what a batch
takes would hide what a round does. Downloads are dense and come in a file, as they do over the link; the memory of a
client is on disk.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from bench.measure import Ratio
from client.app import app  # noqa: F401 - what a client imports is in every process
from client.round import Participant, Station
from common.codec.payload import checksum_of, encode_state
from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.learning.networks import ResNet18
from common.learning.objectives.network import NetworkObjective
from common.learning.task import ClientFiles
from common.learning.torch_task import Part, TorchTask
from common.messages.content import arrays_of
from common.messages.messages import pack_order, unpack_order
from common.program.malloc import keep_freed_memory
from common.rounds.algorithm import Algorithm
from common.rounds.history import History
from common.rounds.schedule import Schedule
from common.storage.spool import PIECE_BYTES, Spool, spooled
from common.vectors.select_long import band_pass

CPU = torch.device("cpu")
ROUNDS, STEPS = 3, 3
READINGS = 3
MOST_MODELS = 4.0
LEARNING_RATE = 0.01


@dataclass(frozen=True, kw_only=True)
class Pictures(TorchTask):
    """A ResNet18 of 45 MB on made-up pictures."""

    batch_size: int = 2

    def module(self) -> nn.Module:
        """Return the network."""
        return ResNet18(64, 10)

    def dataset(self, path: Path, part: Part) -> TensorDataset:
        """Return noise."""
        return TensorDataset(torch.randn(8, 3, 32, 32), torch.arange(8))


TASK = Pictures()


def experiment(name: str) -> Experiment:
    """Return the experiment of a method."""
    return Experiment(
        name="memory",
        rounds=ROUNDS,
        clients=1,
        task=TASK,
        algorithm=plugins.find(Algorithm.plugin_package, name, Algorithm)(learning_rate=LEARNING_RATE, density=0.1),
        schedule=Schedule(period=STEPS),
    )


def run(names: Sequence[str] = ("sparse_proxskip",)) -> list[Ratio]:
    """Return what a client takes beyond bare training, by each of these methods."""
    with tempfile.TemporaryDirectory() as folder:
        download = Path(folder) / "download"
        return [_ratio(name, download) for name in names]


def _ratio(name: str, download: Path) -> Ratio:
    model_bytes = _in_a_process("download", name, download)
    # The least of some: how well an allocator's room fits differs from process to process.
    bare, client = (min(_in_a_process(what, name, download) for _ in range(READINGS)) for what in ("bare", "client"))
    what = f"memory of a client of {model_bytes / 1e6:.0f} MB by {name} beyond bare training, in models"
    return Ratio(what, (client - bare) / model_bytes, MOST_MODELS)


def _in_a_process(what: str, name: str, download: Path) -> int:
    command = [sys.executable, "-m", "bench.memory", what, name, str(download)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603 - this file


def write_download(name: str, file: Path) -> int:
    """Write what the server would send; return the size of the model."""
    state = experiment(name).algorithm.initial_state(_objective().network.state())
    if state.control is not None:  # as it is later: not zero any more
        state = replace(state, control=0.01 * state.model)
    file.write_bytes(encode_state(state)[:])
    return state.model.nbytes


def train_bare(_name: str, _: Path) -> int:
    """Take as many steps as the client does, with nothing but the module; return the most memory that it took."""
    network = _objective().network
    network.module.train()
    pictures, labels = TASK.dataset(Path(), "train")[: TASK.batch_size]
    for _step in range(ROUNDS * STEPS):
        network.gradient.zero_()
        nn.functional.cross_entropy(network.module(pictures), labels).backward()  # type: ignore[no-untyped-call]
        network.weights.sub_(network.gradient.mul_(LEARNING_RATE))
    return _peak_bytes()


def train_client(name: str, download: Path) -> int:
    """Run rounds as a client does, from the bytes of a download to those of an upload; return the same."""
    trial = experiment(name)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        station = Station(name="client-0", part=None, data=state, device=CPU, state_folder=state)
        client, history = Participant.join(trial, station, "memory"), History()
        for number in range(1, ROUNDS + 1):
            content = pack_order("train", arrays_of(_spooled(download)), trial.plan(number), history)
            report = client.train(unpack_order(content, client.like))
            history = history.after_round(number, checksum_of(report.upload))
    return _peak_bytes()


def _objective() -> NetworkObjective:
    return TASK.problem([ClientFiles("client-0", Path())], clients=1, seed=0, device=CPU).objective([0])


def _spooled(file: Path) -> Spool:
    """Return a file as a payload that came over the link."""

    def pieces() -> Iterator[bytes]:
        with file.open("rb") as data:
            while piece := data.read(PIECE_BYTES):
                yield piece

    return spooled(pieces(), file.stat().st_size)


def _peak_bytes() -> int:
    """Return the most that was resident; what `getrusage` says of a process may be its parent's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    band_pass(sys.maxsize)  # what the extra `fast` takes by itself is in every process, as imports are
    work = {"download": write_download, "bare": train_bare, "client": train_client}
    if len(sys.argv) == 4 and sys.argv[1] in work:
        keep_freed_memory()
        torch.set_num_threads(1)
        print(work[sys.argv[1]](sys.argv[2], Path(sys.argv[3])))
    else:
        for ratio in run(sys.argv[1:] or ["sparse_proxskip"]):
            print(f"{ratio.name:80} {ratio.value:.2f}")
