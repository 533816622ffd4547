"""Client processes on this machine, for a whole federation in one command."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from common.experiment.experiment import Experiment
from common.learning.data import DataFolder
from common.learning.task import OwnDataTask, files_of_clients

LEAVE_SECONDS = 8.0


def arguments_of_clients(experiment: Experiment, data: Path | None) -> dict[str, list[str]]:
    """Return, by the clients' names, what each has to be told of its data."""
    if isinstance(experiment.task, OwnDataTask):
        files = files_of_clients(DataFolder.choose(data), experiment.clients)
        return {one.client: ["--name", one.client, "--data", str(one.path)] for one in files}
    shared = ["--data", str(data)] if data else []
    count = experiment.clients
    return {f"client-{index}": ["--partition", f"{index}/{count}", *shared] for index in range(count)}


@contextmanager
def local_clients(
    address: str, arguments: Mapping[str, Sequence[str]], *, folder: Path, say: Callable[[str], None]
) -> Iterator[None]:
    """Start one process a client; they leave with this context, and with this process however it ends.

    The folder takes their logs, and their memory, with which they go on when the run does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        threads = max(1, (os.cpu_count() or 1) // len(arguments))
        processes = []
        over = threading.Event()
        for index, (name, own) in enumerate(arguments.items()):
            options = [*own, "--device", _device(index), "--threads", str(threads), "--state", str(folder)]
            process = stack.enter_context(_client(address, options, threads, folder / f"{name}.log"))
            processes.append(process)
            threading.Thread(target=_watch, args=(name, process, over, say), daemon=True).start()
        try:
            yield
        finally:
            over.set()
            for process in processes:  # all at once, so that they leave at the same time
                process.terminate()


def _watch(name: str, process: subprocess.Popen[bytes], over: threading.Event, say: Callable[[str], None]) -> None:
    """Tell of a client that ends on its own: the run would wait for it without a word."""
    code = process.wait()
    if not over.is_set():
        say(f"the process of {name} has ended with exit code {code}; its log says why")


@contextmanager
def _client(address: str, options: Sequence[str], threads: int, log_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "client", "join", address, "--insecure", "--leave-with-parent", *options]
    # The environment says it too, as some of torch's threads are started before an option is read.
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with log_file.open("ab") as log:
        # Our end of the pipe closes with this process, even when it is killed: then the client leaves.
        process = subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
        )
        with leaving(process):
            yield process
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def leaving(process: subprocess.Popen[bytes], seconds: float = LEAVE_SECONDS) -> Iterator[subprocess.Popen[bytes]]:
    """Tell a process to leave when the context ends, and end it if it has not done so after a while."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _device(index: int) -> str:
    """Deal out the GPUs, if there are any, in turns."""
    count = torch.cuda.device_count()
    return f"cuda:{index % count}" if count else "auto"
