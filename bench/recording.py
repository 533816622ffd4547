"""What it costs that a run is written down, beside its model: `python -m bench.recording`.

In one federation some rounds, drawn at random, are kept by the recorder as ever, and the others by nobody. What is
shared by all of them, such as the noise of the machine, is then the same for both. The journal, which holds the model,
is left out; bench.durable has it.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.federation import PROCESSES, VALUES, Case, clients_at, in_a_process
from bench.measure import Ratio
from bench.payload import PayloadProblem
from common.messages.messages import Run
from common.randomness import stream
from common.rounds.ledger import Checkpoint
from common.rounds.records import RoundRecord
from common.say import Event
from server.link.hub import Hub
from server.runs.recorder import Recorder
from server.runs.run_folder import RunFolder
from strategies.flower.listener import Listener
from strategies.flower.strategy import AlgorithmStrategy

CASE = Case(50, "4 kB", 400)
MOST = 0.02  # of a round


class SomeRounds(Listener):
    """Hands about half of the rounds on to a recorder, with an event each, and times all of them."""

    def __init__(self, recorder: Recorder, rounds: int) -> None:
        self.seconds: dict[bool, list[float]] = {True: [], False: []}  # of rounds, by whether they were handed on
        self.recording_seconds: list[float] = []
        self._recorder = recorder
        self._is_kept = [bool(one) for one in stream(0, "rounds that are recorded").random(rounds + 1) < 0.5]
        self._last = math.nan

    def on_round(self, record: RoundRecord, checkpoint: Checkpoint) -> None:
        """Keep a round, or let it go."""
        is_kept, started = self._is_kept[record.round], time.perf_counter()
        if is_kept:
            self._recorder.on_round(record, checkpoint)
            self._recorder.say(Event(f"round {record.round}", kind="bench"))
        now = time.perf_counter()
        if is_kept:
            self.recording_seconds.append(now - started)
        if record.round > 1:  # clients load what they need in the first
            self.seconds[is_kept].append(now - self._last)
        self._last = now

    def say(self, text: str) -> None:
        """Let nobody hear of it."""


def run() -> list[Ratio]:
    """Return what rounds take that are written down, in rounds that are not, and how long they are written for."""
    with_all, recording = in_a_process(_measured, CASE)
    return [
        Ratio(f"time in the recorder / round, {CASE.name}", recording, MOST),
        Ratio(f"round that is written down / not, {CASE.name}", with_all, None),  # it varies by as much as we allow
    ]


def _measured(case: Case) -> tuple[float, float]:
    experiment = case.experiment
    with tempfile.TemporaryDirectory(dir=".") as name, ExitStack() as stack:  # on a disk, as /tmp may be none
        folder = Path(name)
        hub = stack.enter_context(Hub("127.0.0.1:0"))
        for place in range(PROCESSES):
            stack.enter_context(clients_at(hub.address, case, place, folder))
        kept = RunFolder.create(folder / "run", experiment, "payload")
        recorder = Recorder(kept, experiment, show=_ignore, say=_ignore, seconds_between_entries=math.inf)
        listener = SomeRounds(recorder, case.rounds)
        problem = PayloadProblem(case.nodes, VALUES[case.payload])
        strategy = AlgorithmStrategy(experiment, problem, listener=listener)
        with hub.run(Run(experiment=experiment, name="bench")) as grid:
            strategy.start(grid, strategy.initial_arrays, num_rounds=experiment.rounds)
    alone = statistics.median(listener.seconds[False])
    return statistics.median(listener.seconds[True]) / alone, statistics.median(listener.recording_seconds) / alone


def _ignore(_: object) -> None:
    """Show nothing."""


if __name__ == "__main__":
    for ratio in run():
        print(f"{ratio.name}: {ratio.value:.4f} {'' if ratio.holds else '  MISSED'}")
