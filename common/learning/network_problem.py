"""A network and clients who train it: one module in a process, which takes each client's weights in turn."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real  # also numpy's
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from common.learning.batches import Batch, Batches
from common.learning.loader import ReadAhead, batches_of
from common.learning.network_task import NetworkTask
from common.learning.objectives.network import NetworkObjective, examples_of, outputs_of
from common.learning.own_code import OwnCodeError, own_code
from common.learning.task import Measured, OwnDataProblem, Problem
from common.learning.trained_part import TrainedPart
from common.randomness import initialized
from common.rounds.state import ServerState


class NetworkProblem(Problem):
    """What every problem of a network has: its module, and how batches are measured by it."""

    batched: ClassVar[bool] = False

    def __init__(self, task: NetworkTask, *, seed: int, device: torch.device) -> None:
        self.metric = task.metric_names[0]
        self._task, self._seed, self._device = task, seed, device
        self._network = self._made()

    def initial_state(self) -> ServerState:
        """Return the module as it is made, or would be now."""
        if self._network.is_as_made:
            state = self._network.state()
            if self._network.is_as_made:  # still: clients of one process are threads
                return state
        return self._made().state()

    def tensors(self, state: ServerState) -> dict[str, Tensor]:
        """Return a model by the names of the module's state_dict, without what is frozen."""
        return self._network.tensors(state)

    def frozen_digest(self) -> str:
        """Return what tells this machine's frozen part of the module from another's."""
        return self._network.frozen_digest()

    def means(self, state: ServerState, batches: Batches) -> Measured:
        """Return the means of the task's metrics over all examples."""
        network, sums, count = self._network, dict[str, float | Tensor](), 0
        with network.turn(), torch.no_grad():
            network.load(state.model)
            network.load_buffers(state.buffers)
            network.module.eval()
            for batch in batches.all():
                for name, total in self._metrics(batch).items():
                    sums[name] = sums.get(name, 0.0) + total
                count += examples_of(self._task, batch)
            means = {name: float(total) / count for name, total in sums.items()}
            self._refuse_no_number(means, batches)
        return Measured(count, means)

    def with_statistics_of(self, state: ServerState, batch: Batch) -> ServerState:
        """Return a state whose BatchNorm statistics are those of one batch, under its own weights."""
        network = self._network
        norms = [module for module in network.module.modules() if isinstance(module, nn.BatchNorm2d)]
        with network.turn(), torch.no_grad():
            network.load(state.model)
            network.module.train()
            before = [norm.momentum for norm in norms]
            try:
                for norm in norms:
                    norm.momentum = 1.0
                outputs_of(self._task, network, batch, None)
            finally:
                for norm, momentum in zip(norms, before, strict=True):
                    norm.momentum = momentum
            buffers = network.read_buffers()
        return replace(state, buffers=None if buffers is None else buffers.cpu())

    def _metrics(self, batch: Batch) -> dict[str, Tensor]:
        changed, outputs = outputs_of(self._task, self._network, batch, None)
        with own_code(self._task, "metrics"):
            found = self._task.metrics(outputs, changed)
            _refuse_other_metrics(self._task, found)
        return found

    def _refuse_no_number(self, means: Mapping[str, float], batches: Batches) -> None:
        """Blame `metrics` for what is not a number, but not where the model has diverged."""
        wrong = [name for name, mean in means.items() if math.isnan(mean)]
        if wrong and all(map(self._is_finite, batches.all())):
            complaint = f"{wrong[0]} is not a number, though all that the module returns is finite"
            raise OwnCodeError(self._task, "metrics", complaint)

    def _is_finite(self, batch: Batch) -> bool:
        _, outputs = outputs_of(self._task, self._network, batch, None)
        return not isinstance(outputs, Tensor) or bool(outputs.isfinite().all())

    def _made(self) -> TrainedPart:
        with own_code(self._task, "module"):
            module = initialized(self._task.module, self._seed)
            return TrainedPart(module, self._device, self._task.sparse, compiled=self._task.compile)


@dataclass(frozen=True)
class ClientData:
    """One client's examples, and the name that it goes by."""

    client: str
    train: Dataset[Any]
    test: Dataset[Any]


class OwnNetworkProblem(NetworkProblem, OwnDataProblem):
    """A network on data of the clients' own."""

    data_name = "data of the clients' own"

    def __init__(
        self, task: NetworkTask, data: Sequence[ClientData], *, clients: int, seed: int, device: torch.device
    ) -> None:
        super().__init__(task, seed=seed, device=device)
        self.clients = clients
        self.measured = frozenset(task.metric_names)
        self._names = [one.client for one in data]
        ahead = ReadAhead()
        self._train = [batches_of(task, one.train, device, f"dataset(train) of {one.client}", ahead) for one in data]
        self._test = [batches_of(task, one.test, device, f"dataset(test) of {one.client}") for one in data]
        for batches, one in zip(self._train, data, strict=True):
            if batches.count == 0:
                raise OwnCodeError(task, f"dataset(train) of {one.client}", "it is empty: there is nothing to train on")

    def objective(self, clients: Sequence[int]) -> NetworkObjective:
        """Return the loss of one client."""
        (client,) = clients
        number = zlib.crc32(self._names[client].encode())
        return NetworkObjective(self._task, self._network, self._train[client], seed=self._seed, client=number)

    def measure(self, state: ServerState) -> list[Measured]:
        """Return each client's metrics on what it holds out."""
        return [self.means(state, test) for test in self._test]


def _refuse_other_metrics(task: NetworkTask, found: object) -> None:
    """Refuse what is not one number by each of the names that a task declares."""
    if not isinstance(found, Mapping):
        raise OwnCodeError(task, "metrics", f"it must return a dict of numbers, not {type(found).__name__}")
    if set(found) != set(task.metric_names):
        names, declared = ", ".join(map(str, found)), ", ".join(task.metric_names)
        raise OwnCodeError(task, "metrics", f"it returns {names}, where metric_names declares {declared}")
    for name, total in found.items():
        if not (isinstance(total, Real) or (isinstance(total, Tensor) and total.numel() == 1)):
            what = f"{list(total.shape)} numbers" if isinstance(total, Tensor) else type(total).__name__
            raise OwnCodeError(task, "metrics", f"{name} must be one number, the sum over a batch, not {what}")
