"""Real runs, and a real `watch` that shows them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server.deploy.local_clients import leaving
from tests.harness.processes import is_listening, lines_in, local, proxskip_server, wait_until

HOSTILE = "<script>document.title='broken'</script>"
LEAVE_SECONDS = 20.0


@contextmanager
def watch(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Show the runs in a folder."""
    command = [sys.executable, "-m", "server", "watch", str(folder), "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    with leaving(process, LEAVE_SECONDS):
        wait_until(lambda: is_listening(port))
        yield process


@contextmanager
def endless_run(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start two clients and their server, which train until the context ends."""
    command = local("digits", "--clients", "2", "--set", "rounds=1000000", "--output", str(folder))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with leaving(process, LEAVE_SECONDS):
        wait_until(lambda: lines_in(folder / "rounds.jsonl") > 0)
        yield process


def simulate(folder: Path, algorithm: str, rounds: int = 20) -> None:
    """Leave a finished run behind."""
    settings = ("--set", f"algorithm.name={algorithm}", "--set", f"rounds={rounds}", "--set", "clients=3")
    done = proxskip_server("simulate", "digits", *settings, "--output", str(folder))
    assert done.returncode == 0, done.stderr


def made_hostile(run: Path, copy: Path) -> None:
    """Copy a run whose clients and events have names that would like to be markup."""
    shutil.copytree(run, copy)
    seconds = {"download": 0.1, "train": 0.2, "upload": 0.1}
    row = {"round": 1, "clients": {HOSTILE: {"paper_bits_up": 32, "seconds": seconds}}}
    (copy / "clients.jsonl").write_text(json.dumps(row) + "\n")
    event = {"time": "2026-11-18T14:05:57.123Z", "kind": "joined", "client": HOSTILE, "text": f"{HOSTILE} has joined"}
    with (copy / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
