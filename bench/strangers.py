"""What a thousand strangers at the door cost a round: `python -m bench.strangers`."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path

from bench.measure import Ratio
from bench.payload import TASK, PayloadProblem
from common.experiment.files import load_experiment
from common.messages.flower import quiet_flower
from common.messages.messages import Run
from server.keys.folder import Keys
from server.link.hub import Hub
from tests.harness.processes import client_process
from tests.harness.strangers import KINDS, strangers
from tests.harness.witness import Witness

EXPERIMENT = Path(__file__).with_name("payload.yaml")
VALUES, CLIENTS, ROUNDS = 1_000, 2, 400
TURNS = 3
SLOWEST = 1 / 0.8  # rounds go on at 80 % of their speed


def run() -> list[Ratio]:
    """Measure rounds with and without strangers, in turns."""
    return [Ratio(f"round beside 1,000 {kind} / alone", _slowed_by(kind), SLOWEST) for kind in KINDS]


def _slowed_by(kind: str) -> float:
    alone, beside = [], []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        keys = None if "streams" in kind else Keys.init(folder / "keys", ["127.0.0.1"], 9092)
        hub = stack.enter_context(Hub("127.0.0.1:0", keys, _quiet))
        for index in range(CLIENTS):
            options = [hub.address, "--insecure"]
            if keys is not None:
                options = [str(keys.add(f"client-{index}")), "--server", hub.address]
            options += [
                "--threads",
                "1",
                "--partition",
                f"{index}/{CLIENTS}",
                "--state",
                str(folder),
                "--allow-task",
                TASK,
            ]
            stack.enter_context(client_process(*options, log=folder / f"{index}.log"))
        _round_seconds(hub)  # all are here, and know what to do
        for _ in range(TURNS):
            alone.append(_round_seconds(hub))
            beside.append(_round_seconds(hub, kind))
    return statistics.median(beside) / statistics.median(alone)


def _round_seconds(hub: Hub, kind: str | None = None) -> float:
    """Return the median seconds of a round, beside strangers or alone."""
    settings = [f"clients={CLIENTS}", f"task.size={VALUES}", f"rounds={ROUNDS}"]
    experiment = load_experiment(str(EXPERIMENT), settings)
    witness = Witness(experiment, problem=PayloadProblem(CLIENTS, VALUES))
    attack = strangers(kind, hub.address) if kind else nullcontext()
    with attack, hub.run(Run(experiment=experiment, name="bench")) as grid:
        witness.run(grid)
    return statistics.median(record.seconds for record in witness.records[1:])


def _quiet(_: str) -> None:
    """Say nothing."""


def main() -> None:
    """Print how much slower rounds are."""
    quiet_flower()
    for ratio in run():
        print(f"{ratio.name}: {ratio.value:.2f}{'' if ratio.holds else ' (MISSED)'}")


if __name__ == "__main__":
    main()
