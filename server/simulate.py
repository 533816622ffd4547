"""All clients in one process: the deployed algorithm code without the network.

Where one objective can hold many clients (convex tasks), all of them run as one batch of rows; networks run client by
client. Either way every client does what it would do on its own machine, with the same random numbers. As in a
deployment, the server's side is on the CPU and only the clients are on the device.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from common.aggregate import ControlSum, RunningMean
from common.algorithm import Algorithm, client_round
from common.divergence import refuse_divergence
from common.experiment import Experiment
from common.payload import pack_state, pack_upload
from common.sparsity import density_of
from common.task import Objective, Problem
from common.types import BITS_A_VALUE, Checkpoint, ClientMemory, RoundPlan, RoundRecord, ServerState, Traffic, Upload
from server.journal import Entry

SIMULATION = "simulation"  # in place of the name of a deployed run


@dataclass
class Cohort:
    """Clients that run as one: the rows of one tensor, or a single client with a vector."""

    objective: Objective
    rows: int | None  # None: a single client, without a batch dimension
    device: torch.device
    memory: ClientMemory = field(default_factory=ClientMemory)

    def download(self, state: ServerState) -> ServerState:
        """Give every row the same state, on the clients' device."""
        return ServerState(
            model=self._spread(state.model),
            control=None if state.control is None else self._spread(state.control),
            buffers=None if state.buffers is None else state.buffers.to(self.device),
        )

    def uploads(self, upload: Upload) -> Iterator[Upload]:
        """Take the upload of all rows apart into those of the clients, on the CPU."""
        model, control = upload.model.cpu(), None if upload.control_change is None else upload.control_change.cpu()
        if self.rows is None:
            yield Upload(model=model, control_change=control, buffers=upload.buffers)
            return
        for row in range(self.rows):
            yield Upload(model=model[row], control_change=None if control is None else control[row])

    def _spread(self, vector: torch.Tensor) -> torch.Tensor:
        moved = vector.to(self.device)
        return moved if self.rows is None else moved.expand(self.rows, -1)


class Simulation:
    """A federation in one process, between two rounds."""

    def __init__(self, experiment: Experiment, problem: Problem, device: torch.device) -> None:
        self.experiment = experiment
        self.problem = problem
        self.algorithm: Algorithm = experiment.algorithm
        self.state = self.algorithm.initial_state(problem.initial_state())
        self.cohorts = self._cohorts(device)
        self.rounds_done = 0
        self.bits_up = 0.0
        self._encodes = experiment.codec.encode_in_simulation

    def entry(self, record: RoundRecord) -> Entry:
        """Return what it takes to go on after the last round, of which this is the record."""
        checkpoint = Checkpoint(round=self.rounds_done, state=self.state, bits_up=self.bits_up)
        controls = [cohort.memory.control for cohort in self.cohorts]
        return Entry(run=SIMULATION, checkpoint=checkpoint, record=record, controls=controls)

    def go_on_from(self, entry: Entry) -> None:
        """Be as the simulation was that wrote this entry."""
        self.state, self.rounds_done = entry.checkpoint.state, entry.checkpoint.round
        self.bits_up = entry.checkpoint.bits_up
        for cohort, control in zip(self.cohorts, entry.controls, strict=True):
            moved = None if control is None else control.to(cohort.device)
            cohort.memory = ClientMemory(control=moved, settled=self.rounds_done)

    def rounds(self) -> Iterator[RoundRecord]:
        """Run the rounds that are left, giving each one's record."""
        while self.rounds_done < self.experiment.rounds:
            yield self.step()

    def step(self) -> RoundRecord:
        """Run the next round."""
        started = time.perf_counter()
        plan = self.experiment.plan(self.rounds_done + 1)
        density_down = density_of(self.state.model).item()
        payload_down = len(pack_state(self.state)) if self._encodes else None
        sent, traffic = self._train(plan, payload_down)
        seconds = time.perf_counter() - started
        self.rounds_done = plan.round
        self.bits_up += BITS_A_VALUE * sent.values / self.problem.clients
        record = RoundRecord(
            round=plan.round,
            local_steps=plan.local_steps,
            clients_counted=self.problem.clients,
            paper_bits_up=self.bits_up,
            density_up=sent.model_values / (self.problem.clients * self.state.model.shape[-1]),
            density_down=density_down,
            control_sum_norm=self._control_sum_norm(),
            seconds=seconds,
            payload_bytes_up=_total(one.payload_bytes_up for one in traffic.values()),
            payload_bytes_down=_total(one.payload_bytes_down for one in traffic.values()),
            traffic_by_client=traffic,
            metrics=self._evaluate() if self.experiment.is_evaluated(plan.round) else {},
        )
        refuse_divergence(plan.round, self.state.model, [*record.metrics.values(), record.control_sum_norm or 0.0])
        return record

    def kept(self) -> ServerState:
        """Return the model as it is evaluated and saved."""
        return self.algorithm.evaluated(self.state)

    def _cohorts(self, device: torch.device) -> list[Cohort]:
        everyone = range(self.problem.clients)
        objective = self.problem.objective
        if self.problem.batched:
            cohorts = [Cohort(objective(everyone), len(everyone), device)]
        else:
            cohorts = [Cohort(objective([client]), None, device) for client in everyone]
        for cohort in cohorts:
            cohort.memory = self.algorithm.initial_memory(cohort.download(self.state))
        return cohorts

    def _train(self, plan: RoundPlan, payload_down: int | None) -> tuple[RunningMean, dict[str, Traffic]]:
        average = RunningMean()
        traffic: dict[str, Traffic] = {}
        for cohort in self.cohorts:
            download = cohort.download(self.state)
            upload, cohort.memory = client_round(self.algorithm, plan, download, cohort.memory, cohort.objective)
            average.add(upload)
            for sent in cohort.uploads(upload):
                traffic[f"client-{len(traffic)}"] = Traffic(
                    paper_bits_up=BITS_A_VALUE * _values(sent),
                    payload_bytes_up=len(pack_upload(sent, plan.precision)) if self._encodes else None,
                    payload_bytes_down=payload_down,
                )
        self.state = self.algorithm.aggregate(plan, self.state, average.mean(), participation=1.0)
        # A deployed client settles when the next download comes; here it can do so at once, and the sum can be logged.
        for cohort in self.cohorts:
            cohort.memory = self.algorithm.settle(cohort.memory, self.state.model.to(cohort.device))
        return average, traffic

    def _evaluate(self) -> dict[str, float]:
        kept = self.kept()
        loss = 0.0
        for cohort in self.cohorts:
            download = cohort.download(kept)
            loss += cohort.objective.loss(download.model, download.buffers).cpu().double().sum().item()
        return {**self.problem.evaluate(kept), "train_loss": loss / self.problem.clients}

    def _control_sum_norm(self) -> float | None:
        """Return how far the controls are from summing to zero; None without control variates."""
        if not self.algorithm.has_control:
            return None
        controls = ControlSum()
        for cohort in self.cohorts:
            correction = self.algorithm.correction(cohort.memory, cohort.download(self.state))
            assert correction is not None
            controls.add(correction)
        return controls.relative_norm()


def _values(upload: Upload) -> int:
    """Return how many values of an upload the paper counts."""
    control = upload.control_change
    return int(torch.count_nonzero(upload.model)) + (0 if control is None else int(torch.count_nonzero(control)))


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
