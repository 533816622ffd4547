"""How long watch takes to show a very long run for the first time and from then on, and how much room clients take."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

from bench.measure import Ratio, median_seconds
from common.experiment.files import load_experiment
from common.rounds.records import PHASES, ClientRecord, RoundRecord, utc_now
from server.runs.run_folder import CLIENTS, ROUNDS, RunFolder
from server.watch.run_files import RunFiles
from server.watch.run_view import RunView

CLIENTS_SHOWN, ROUNDS_SHOWN = 200, 10_000
CLIENTS_KEPT, ROUNDS_KEPT = 554, 1_000
LARGEST_BYTES = 20e6  # of clients.jsonl for those that are kept
FIRST_ANSWER_SECONDS = 2.0
DISTINCT = 50  # rounds; their lines come again and again, as packing a line takes longer than reading it
REPETITIONS = 5

_Item = TypeVar("_Item")


def run() -> Iterator[Ratio]:
    """Give the figures."""
    with tempfile.TemporaryDirectory() as place:
        kept = _folder(Path(place) / "kept", CLIENTS_KEPT, ROUNDS_KEPT).path / CLIENTS
        what = f"clients.jsonl of {CLIENTS_KEPT} clients x {ROUNDS_KEPT:,} rounds / 20 MB"
        yield Ratio(what, kept.stat().st_size / LARGEST_BYTES, 1.0)
        yield from _showing(_folder(Path(place) / "shown", CLIENTS_SHOWN, ROUNDS_SHOWN))


def _showing(folder: RunFolder) -> Iterator[Ratio]:
    """Measure the first answer, an update, and plain reading of the same rounds beside them."""
    who = f"{CLIENTS_SHOWN} clients x {ROUNDS_SHOWN:,} rounds"

    def first() -> RunFiles:
        run = RunFiles(folder.path)
        run.refresh(with_clients=True)
        json.dumps(RunView("run", run, time.time()).whole())
        return run

    begun = first()
    while not begun.clients.are_sums_complete:
        begun.refresh(with_clients=True)
    number = ROUNDS_SHOWN

    def update() -> None:
        nonlocal number
        number += 1
        record = _record(number, CLIENTS_SHOWN)
        folder.add_clients(record)
        folder.add_round(record)
        begun.refresh(with_clients=True)
        json.dumps(RunView("run", begun, time.time()).whole())

    def plain() -> None:
        for line in (folder.path / ROUNDS).read_bytes().splitlines():
            json.loads(line)

    seconds = median_seconds({"first": first, "update": update, "plain": plain}, REPETITIONS)
    yield Ratio(f"watch, {who}: the first answer / 2 s", seconds["first"] / FIRST_ANSWER_SECONDS, 1.0)
    yield Ratio(
        f"watch, {who}: the first answer / json.loads of rounds.jsonl", seconds["first"] / seconds["plain"], None
    )
    yield Ratio(f"watch, {who}: a round more / the first answer", seconds["update"] / seconds["first"], 0.2)


def _folder(path: Path, clients: int, rounds: int) -> RunFolder:
    folder = RunFolder.create(path, load_experiment("digits", [f"clients={clients}", f"rounds={rounds}"]), "made up")
    records = [_record(number, clients) for number in range(1, DISTINCT + 1)]
    bodies = [record.clients_to_json().partition(",")[2] for record in records]
    with (folder.path / CLIENTS).open("w", encoding="utf-8") as file:
        file.writelines(f'{{"round":{number},{body}\n' for number, body in enumerate(_repeated(bodies, rounds), 1))
    with (folder.path / ROUNDS).open("w", encoding="utf-8") as file:
        numbered = (replace(one, round=number) for number, one in enumerate(_repeated(records, rounds), 1))
        file.writelines(f"{one.to_json()}\n" for one in (replace(one, by_client={}) for one in numbered))
    return folder


def _repeated(items: list[_Item], times: int) -> Iterator[_Item]:
    return islice(cycle(items), times)


def _record(number: int, clients: int) -> RoundRecord:
    """Return a round whose numbers are as little alike as real ones."""
    draw = random.Random(number)  # noqa: S311 - no secret
    own = {f"client-{index}": _client(draw) for index in range(clients)}
    return RoundRecord(
        round=number,
        time=utc_now(),
        local_steps=16,
        clients=clients,
        clients_counted=clients,
        paper_bits_up=2080.0 * number,
        density_up=0.1,
        density_down=0.3,
        control_sum_norm=None,
        seconds=draw.lognormvariate(-2, 0.3),
        metrics={"test_accuracy": draw.random()},
        payload_bytes_up=sum(one.payload_bytes_up or 0 for one in own.values()),
        payload_bytes_down=sum(one.payload_bytes_down or 0 for one in own.values()),
        message_bytes_up=sum(one.message_bytes_up or 0 for one in own.values()),
        message_bytes_down=sum(one.message_bytes_down or 0 for one in own.values()),
        waited_for="client-0",
        seconds_by_phase=own["client-0"].seconds,
        by_client=own,
    )


def _client(draw: random.Random) -> ClientRecord:
    up, down = draw.randint(11_000, 13_000), draw.randint(23_000, 24_000)
    return ClientRecord(
        payload_bytes_up=up,
        payload_bytes_down=down,
        message_bytes_up=up + draw.randint(60, 70),
        message_bytes_down=down + draw.randint(60, 70),
        paper_bits_up=96_000 + 32 * draw.randint(0, 99),
        memory_mb=draw.uniform(360, 372),
        seconds={phase: draw.lognormvariate(-4, 0.7) for phase in PHASES},
    )
