"""The same bits before and after: `python -m bench.sameness OTHER_CHECKOUT` runs a dozen runs in both and compares.

A change that moves code must leave every final model and every line of rounds.jsonl and clients.jsonl as it was, but
for what is measured with a clock, depends on names that are drawn anew in each run, or is in one of the two only.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

HERE = Path(__file__).parent.parent
MEASURED = {
    "time",
    "waited_for",
    "seconds",
    "seconds_by_phase",
    "memory_mb",
    "vram_mb",
    "message_bytes_up",
    "message_bytes_down",
}
KILLED_AFTER_ROUNDS = 5


@dataclass(frozen=True)
class Trial:
    """One run: the arguments of `proxskip-server`, and whether it is killed once and goes on."""

    name: str
    arguments: tuple[str, ...]
    killed: bool = False


def algorithms(checkout: Path) -> set[str]:
    """Return the names of the algorithms that a checkout has."""
    return {path.stem for path in (checkout / "strategies").glob("*.py")} - {"__init__"}


def trials(data: str | None, other: Path) -> Iterator[Trial]:
    """Yield what is compared: all algorithms of both sides simulated, some deployed, one resumed, one on real data."""
    for name in sorted(algorithms(HERE) & algorithms(other)):
        yield _trial(f"simulated {name}", "simulate", "digits", "rounds=20", f"algorithm.name={name}")
    yield _trial("simulated bfloat16", "simulate", "digits", "rounds=20", "codec.precision=bfloat16")
    for name in ("sparse_proxskip", "scaffold", "fediht"):
        yield _trial(f"deployed {name}", "local", "digits", "clients=3", "rounds=10", f"algorithm.name={name}")
    resumed = ("clients=2", "rounds=60", "schedule.period=64")
    yield Trial("resumed", _trial("", "local", "digits", *resumed).arguments, killed=True)
    if data:
        yield _trial("blogfeedback", "simulate", "blogfeedback", "rounds=10")
        small = ("task.width=4", "task.train_samples=200", "task.test_samples=100", "task.loss_samples=50")
        yield _trial("network", "simulate", "cifar10", "clients=2", "rounds=3", "schedule.period=2", *small)


def _trial(name: str, command: str, experiment: str, *settings: str) -> Trial:
    given = [word for setting in settings for word in ("--set", setting)]
    return Trial(name, (command, experiment, *given))


def outcome(trial: Trial, checkout: Path, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Run a trial with a checkout's code; return the hash of its model, and its rounds without what is measured."""
    output = folder / trial.name.replace(" ", "-")
    with (folder / f"{output.name}.log").open("wb") as log:
        command = [sys.executable, "-m", "server", *trial.arguments, "--output", str(output)]
        if trial.killed:
            _run_and_kill(command, checkout, output / "rounds.jsonl", log.fileno())
            command = [sys.executable, "-m", "server", trial.arguments[0], "--resume", str(output)]
        environment = _environment(checkout)
        subprocess.run(command, cwd=checkout, env=environment, stdout=log, stderr=log, check=True, timeout=900)  # noqa: S603
    digest = hashlib.sha256()
    for _, tensor in sorted(load_file(output / "model.safetensors").items()):
        digest.update(tensor.numpy().tobytes())
    by_client = {one["round"]: {"by_client": one["clients"]} for one in _lines(output / "clients.jsonl")}
    rounds = [{**one, **by_client.get(one["round"], {})} for one in _lines(output / "rounds.jsonl")]
    return digest.hexdigest(), [_without_measured(one) for one in rounds]


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of which a run may have none, or a checkout's code not know."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _run_and_kill(command: list[str], checkout: Path, rounds: Path, log: int) -> None:
    process = subprocess.Popen(command, cwd=checkout, env=_environment(checkout), stdout=log, stderr=log)  # noqa: S603
    while process.poll() is None and not (rounds.exists() and rounds.read_text().count("\n") > KILLED_AFTER_ROUNDS):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


def _environment(checkout: Path) -> dict[str, str]:
    """Return an environment in which that checkout's code is found first, by the processes that it starts too."""
    return {**os.environ, "PYTHONPATH": str(checkout)}


def _without_measured(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _without_measured(inner) for key, inner in value.items() if key not in MEASURED}
    return value


def difference(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """Return the fields that differ in some round, of those that both sides have."""
    if len(before) != len(after):
        return ["the number of rounds"]
    pairs = list(zip(before, after, strict=True))
    return sorted({key for old, new in pairs for key in old.keys() & new.keys() if old[key] != new[key]})


def main(other: Path) -> int:
    """Compare this checkout with another; the exit code says whether all is the same."""
    failures = 0
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:
        folders = {HERE: Path(temporary) / "here", other: Path(temporary) / "other"}
        for folder in folders.values():
            folder.mkdir()
        chosen = list(trials(os.environ.get("PROXSKIP_DATA"), other))
        futures = [[pool.submit(outcome, trial, *one) for one in folders.items()] for trial in chosen]
        for trial, pair in zip(chosen, futures, strict=True):
            (model, rounds), (old_model, old_rounds) = (future.result() for future in pair)
            fields = difference(old_rounds, rounds)
            failures += bool(fields) or model != old_model
            verdict = "the same model" if model == old_model else "ANOTHER MODEL"
            print(f"{trial.name}: {verdict}, {'the same rounds' if not fields else 'other ' + ', '.join(fields)}")
    print(f"{len(chosen) - failures} of {len(chosen)} runs are the same, bit by bit")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
