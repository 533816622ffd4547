"""What clients of one process share: a public data set, which each of them would load whole."""

from __future__ import annotations

import threading

import torch

from common.experiment.experiment import Experiment
from common.learning.data import DataFolder
from common.learning.task import Problem


class SharedProblem:
    """The newest problem that a client of this process has loaded, for the others of the same run."""

    def __init__(self) -> None:
        self._loading = threading.Lock()
        self._key: object = None
        self._problem: Problem | None = None

    def load(self, experiment: Experiment, data: DataFolder, device: torch.device, run: str) -> Problem:
        """Load what a run asks for, once: who asks meanwhile waits for it. The next run reads its data anew."""
        key = (experiment, data, device, run)
        with self._loading:
            if self._problem is None or self._key != key:
                self._problem = None  # not two at a time, unless a client still has the old one
                self._problem, self._key = experiment.load(data, device), key
            return self._problem
