"""Client processes on this machine, for a whole federation in one command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from common.errors import UserError
from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.learning.data import DataFolder
from common.learning.task import OwnDataTask, Task, files_of_clients
from common.rounds.algorithm import Algorithm
from common.say import Event, Say
from common.storage.disk import writing

LEAVE_SECONDS = 8.0
SECONDS_BETWEEN_ALARMS = 1.0
ALARM = signal.SIGUSR1  # ends what the main thread waits for as Ctrl-C does, which a shell may have turned off


def arguments_of_clients(experiment: Experiment, data: Path | None, devices: Sequence[str]) -> dict[str, list[str]]:
    """Return, by the clients' names, what each has to be told: its data, its device, and what it may run."""
    own = _data_of_clients(experiment, data)
    allowed = _allowance(experiment)
    return {
        name: [*given, *allowed, "--device", device] for (name, given), device in zip(own.items(), devices, strict=True)
    }


def _data_of_clients(experiment: Experiment, data: Path | None) -> dict[str, list[str]]:
    if isinstance(experiment.task, OwnDataTask):
        files = files_of_clients(DataFolder.choose(data), experiment.clients)
        return {one.client: ["--name", one.client, "--data", str(one.path)] for one in files}
    shared = ["--data", str(data)] if data else []
    count = experiment.clients
    return {f"client-{index}": ["--partition", f"{index}/{count}", *shared] for index in range(count)}


def _allowance(experiment: Experiment) -> list[str]:
    """Return the options that allow what the user of this machine has named in the experiment."""
    task = plugins.name_of(Task.plugin_package, type(experiment.task))
    algorithm = plugins.name_of(Algorithm.plugin_package, type(experiment.algorithm))
    named = {"--allow-task": task, "--allow-algorithm": algorithm}
    return [word for option, name in named.items() if ":" in name for word in (option, name)]


class _Watch:
    """Hears of clients that end on their own: nobody starts them again, and a run would wait for them for ever."""

    def __init__(self, clients: int, needed: int, say: Say) -> None:
        self._clients = self._left = clients
        self._needed = needed
        self._say = say
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._failure = ""

    def start(self, name: str, process: subprocess.Popen[bytes], log_file: Path) -> None:
        """Wait for a process in a thread of its own."""
        threading.Thread(target=self._wait, args=(name, process, log_file), daemon=True).start()

    def end_the_run(self, *_: object) -> None:
        """End what the main thread does, with the reason; called where a signal is handled."""
        raise UserError(self._failure)

    def end(self) -> None:
        """Hear no more: from now on clients are told to leave."""
        with self._changing:
            self._ended.set()

    def _wait(self, name: str, process: subprocess.Popen[bytes], log_file: Path) -> None:
        ending = f"the process of {name} {_how_it_ended(process.wait(), log_file)}"
        with self._changing:
            if self._ended.is_set():
                return
            self._left -= 1
            if self._left >= self._needed or self._failure:
                self._say(Event(ending, kind="process ended", client=name))
                return
            self._failure = f"{ending} ({self._left} of {self._clients} are left, a round needs {self._needed})"
        while True:  # again: an interrupt that falls into a finalizer is swallowed
            signal.pthread_kill(threading.main_thread().ident or 0, ALARM)
            if self._ended.wait(SECONDS_BETWEEN_ALARMS):
                return


@contextmanager
def local_clients(
    address: str, arguments: Mapping[str, Sequence[str]], *, needed: int, folder: Path, say: Say
) -> Iterator[None]:
    """Start one process per client; they leave with this context, and with this process however it ends.

    The folder takes their logs, and their memory, with which they go on when the run does. When fewer than `needed`
    are left, this ends with what the last of them said.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what clients remember is for nobody else
    watch = _Watch(len(arguments), needed, say)
    before = signal.signal(ALARM, watch.end_the_run)
    try:
        with ExitStack() as stack:
            threads = max(1, (os.cpu_count() or 1) // len(arguments))
            processes = []
            try:
                for name, own in arguments.items():
                    options = [*own, "--threads", str(threads), "--state", str(folder)]
                    log_file = folder / f"{name}.log"
                    process = stack.enter_context(_client(address, options, log_file))
                    processes.append(process)
                    watch.start(name, process, log_file)
                yield
            finally:
                watch.end()
                for process in processes:  # all at once, so that they leave at the same time
                    process.terminate()
    finally:
        signal.signal(ALARM, before)


def _how_it_ended(code: int, log_file: Path) -> str:
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"was killed ({name}), and nobody starts it again"
    lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "nothing")
    return f"has ended (exit code {code}); its log {log_file} says: {last.removeprefix('error: ')}"


@contextmanager
def _client(address: str, options: Sequence[str], log_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    # -P: our package is meant, not a folder `client` of the user's where this program was started.
    command = [sys.executable, "-P", "-m", "client", "join", address, "--insecure", "--leave-with-parent", *options]
    with writing(log_file):
        opened = log_file.open("ab")
    with (
        opened as log,
        # Our end of the pipe closes with this process, even when it is killed: then the client leaves.
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log) as process,  # noqa: S603 - our own
        leaving(process),
    ):
        yield process


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
