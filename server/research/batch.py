"""Many simulated runs: of the same length, on all cores, with the data read once by each of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import TypeVar

import torch

from common.errors import UserError
from common.experiment.experiment import Experiment
from common.learning.data import DataFolder
from common.learning.task import Problem, Task

CPU = torch.device("cpu")
_at_hand: list[tuple[tuple[Task, int, int, Path | None], Problem]] = []  # one at most
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def lasting(local_steps: int, period: int, evaluations: int) -> list[str]:
    """Return the settings of a run with so many local steps, whatever its period: so that all take the same time."""
    rounds = max(1, local_steps // period)
    return [
        f"rounds={rounds}",
        f"evaluate_every_rounds={max(1, rounds // evaluations)}",
        "codec.encode_in_simulation=false",
    ]


def on_all_cores(
    function: Callable[[_Job, Path | None], _Result], jobs: Sequence[_Job], data: Path | None
) -> Iterator[tuple[_Job, _Result]]:
    """Call a function for every job, in processes of one thread each; yield every result as soon as it is there."""
    workers = min(os.cpu_count() or 1, max(1, len(jobs)))
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})  # numpy's, read when a process starts
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_prepare_worker) as pool:
        futures = {pool.submit(_called, function, job, data): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise UserError(
                "a process that computed was killed, for want of memory perhaps; the same command goes on"
            ) from None
        except BaseException:  # Ctrl-C is one too
            for worker in active_children():  # or the pool would wait until all jobs are done
                worker.terminate()
            raise


def _prepare_worker() -> None:
    """Make ready a process that computes with one thread, and no longer than somebody wants its results."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to us all; the parent answers it
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _called(function: Callable[[_Job, Path | None], _Result], job: _Job, data: Path | None) -> _Result:
    """Call a function; what it has to tell the user goes to the parent as words: not every error can be sent."""
    try:
        return function(job, data)
    except UserError as error:
        raise UserError(str(error)) from None


def _end_with_parent() -> None:
    """End at once, in mid-computation too, when the parent is gone: a killed one cannot say that it is."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def problem_of(experiment: Experiment, data: Path | None) -> Problem:
    """Load an experiment's data; what the last one needed is still at hand."""
    needed = (experiment.task, experiment.clients, experiment.seed, data)
    if not _at_hand or _at_hand[0][0] != needed:
        _at_hand.clear()  # before there is another: data may be large
        _at_hand.append((needed, experiment.load(DataFolder.choose(data), CPU)))
    return _at_hand[0][1]
