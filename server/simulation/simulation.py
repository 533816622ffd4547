"""All clients in one process: the deployed algorithm code without the network.

Where one objective can hold many clients (convex tasks), all of them run as one batch of rows; networks run client by
client. Either way every client does what it would do on its own machine, with the same random numbers. As in a
deployment, the server's side is on the CPU and only the clients are on the device. Where only a part of the clients
takes part in a round, at random, the others are as if they had been away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from common.codec.given import Given, given_to_uploads
from common.codec.payload import encode_state, encode_upload
from common.codec.scales import scale_of
from common.experiment.experiment import Experiment
from common.learning.task import Problem
from common.randomness import stream
from common.rounds.account import RoundAccount
from common.rounds.algorithm import Algorithm, client_round, server_round
from common.rounds.history import History
from common.rounds.ledger import Checkpoint
from common.rounds.mean import ControlSum, RunningMean
from common.rounds.objective import Objective
from common.rounds.records import RoundRecord
from common.rounds.state import ClientMemory, RoundPlan, ServerState, Upload
from common.vectors.divergence import refuse_divergence

SIMULATION = "simulation"  # in place of the name of a deployed run


@dataclass
class Cohort:
    """Clients that run as one: the rows of one tensor, or a single client with a vector."""

    objective: Objective
    clients: tuple[int, ...]  # whose they are
    rows: int | None  # None: a single client, without a batch dimension
    device: torch.device
    memory: ClientMemory = field(default_factory=ClientMemory)
    present: list[int] = field(default_factory=list)  # which of its clients take part in the round

    def numbered(self, plan: RoundPlan) -> RoundPlan:
        """Return a round's plan with the numbers of its clients."""
        return replace(plan, client=self.clients[0] if self.rows is None else self.clients)

    def download(self, state: ServerState) -> ServerState:
        """Give every row the same state, on the clients' device."""
        return ServerState(
            model=self._spread(state.model),
            control=None if state.control is None else self._spread(state.control),
            buffers=None if state.buffers is None else state.buffers.to(self.device),
        )

    def counted(self, upload: Upload) -> Upload:
        """Return the rows of those who take part."""
        if self.rows is None or len(self.present) == self.rows:
            return upload
        control = upload.control_change
        return Upload(
            model=upload.model[self.present], control_change=None if control is None else control[self.present]
        )

    def uploads(self, upload: Upload) -> Iterator[Upload]:
        """Take what is counted apart into the uploads of the clients, on the CPU."""
        model, control = upload.model.cpu(), None if upload.control_change is None else upload.control_change.cpu()
        if self.rows is None:
            yield Upload(model=model, control_change=control, buffers=upload.buffers)
            return
        for row in range(len(model)):
            yield Upload(model=model[row], control_change=None if control is None else control[row])

    def keep(self, settled: ClientMemory, before: ClientMemory) -> None:
        """Remember the round, but only where a client took part in it."""
        if self.rows is not None and len(self.present) < self.rows and before.control is not None:
            assert settled.control is not None
            control = before.control.clone()
            control[self.present] = settled.control[self.present]
            settled = replace(settled, control=control)
        self.memory = settled

    def _spread(self, vector: Tensor) -> Tensor:
        moved = vector.to(self.device)
        return moved if self.rows is None else moved.expand(self.rows, -1)


class Simulation:
    """A federation in one process, between two rounds."""

    def __init__(
        self, experiment: Experiment, problem: Problem, device: torch.device, participation: float = 1.0
    ) -> None:
        self.experiment = experiment
        self.problem = problem
        self.algorithm: Algorithm = experiment.algorithm
        self.checkpoint = Checkpoint(round=0, state=self.algorithm.initial_state(problem.initial_state()))
        self.cohorts = self._cohorts(device)
        self.encodes = experiment.codec.encode_in_simulation  # what goes up and down, to count its bytes
        self.encodes_every = 1  # one of so many uploads of a round, evenly spread
        self._participation = participation
        self._given: Given | None = None  # the model that the last round started from
        self._keepers: set[int] = set()  # who took part in it, and so can be given it

    @property
    def state(self) -> ServerState:
        """Return what the server holds."""
        return self.checkpoint.state

    @property
    def controls(self) -> list[Tensor | None]:
        """Return the clients' control variates, which it takes to go on beside the checkpoint."""
        return [self._memory_of(cohort).control for cohort in self.cohorts]

    @property
    def before(self) -> Tensor | None:
        """Return the model that the last round started from, which the next one's is given; None where it is not."""
        return self._given.entries.dense() if self._given else None

    def go_on_from(
        self, checkpoint: Checkpoint, controls: Sequence[Tensor | None], before: Tensor | None = None
    ) -> None:
        """Be as the simulation was that had this checkpoint and these controls."""
        self._given = None if before is None else Given.of(before)
        self._keepers = set(self._present(checkpoint.round))
        self.checkpoint = checkpoint
        for cohort, control in zip(self.cohorts, controls, strict=True):
            moved = None if control is None else control.to(cohort.device)
            cohort.memory = ClientMemory(control=moved, history=History(counted=checkpoint.round))

    def rounds(self) -> Iterator[RoundRecord]:
        """Run the rounds that are left, giving each one's record."""
        while self.checkpoint.round < self.experiment.rounds:
            yield self.step()

    def step(self) -> RoundRecord:
        """Run the next round."""
        plan = self.experiment.plan(self.checkpoint.round + 1, self.state.model)
        account = RoundAccount(plan, self.state.model, self.problem.clients)
        uploads, values = self._train(plan, account)
        account.end_training()
        record = account.record(
            bits_up_before=self.checkpoint.bits_up,
            values=values,
            model_values=uploads.model_values,
            control_sum_norm=self._control_sum_norm(),
            metrics=self._evaluate() if self.experiment.is_evaluated(plan.round) else {},
        )
        self.checkpoint = replace(self.checkpoint, bits_up=record.paper_bits_up)
        refuse_divergence(plan.round, self.state.model, [*record.metrics.values(), record.control_sum_norm or 0.0])
        return record

    def kept(self) -> ServerState:
        """Return the model as it is evaluated and saved."""
        return self.algorithm.evaluated(self.state)

    def norms(self) -> dict[str, float]:
        """Return the norms of the model, of the sum of the controls, and of a control on average."""
        found = {"model_norm": float(self.kept().model.norm())}
        if self.algorithm.has_control:
            controls = self._controls()
            found |= {"control_sum": controls.sum_norm(), "control_norm": controls.mean_norm()}
        return found

    def _cohorts(self, device: torch.device) -> list[Cohort]:
        everyone = range(self.problem.clients)
        objective = self.problem.objective
        if self.problem.batched:
            cohorts = [Cohort(objective(everyone), tuple(everyone), len(everyone), device)]
        else:
            cohorts = [Cohort(objective([client]), (client,), None, device) for client in everyone]
        for cohort in cohorts:
            cohort.memory = self.algorithm.initial_memory(cohort.download(self.state))
        return cohorts

    def _train(self, plan: RoundPlan, account: RoundAccount) -> tuple[RunningMean, dict[str, int]]:
        """Let all who are present train; return their uploads, and how many values each has sent."""
        uploads, values = RunningMean(), dict[str, int]()
        present = self._present(plan.round)
        given = given_to_uploads(plan, self.state.model) if self.encodes else None
        payload_down = self._payload_bytes_down(present)
        trained: list[tuple[Cohort, ClientMemory]] = []
        for cohort, seats in self._seated(present):
            download = cohort.download(self.state)
            own = replace(download, model=download.model.clone())  # as a client's download is
            own_plan = replace(cohort.numbered(plan), cohort=len(present), seats=seats)
            upload, memory = client_round(self.algorithm, own_plan, own, cohort.memory, cohort.objective)
            trained.append((cohort, memory))
            counted = cohort.counted(upload)
            uploads.add(counted)
            payload_up = self._payload_bytes_up(plan, cohort, counted, given, first=len(values))
            for count, up in zip(_values(counted), payload_up, strict=True):
                client = present[len(values)]
                name = f"client-{client}"
                values[name] = count
                if up is not None:
                    account.spent_on("train").payload_up[name] = up
                    account.spent_on("train").payload_down[name] = payload_down[client]
        self._given, self._keepers = given, set(present)
        share = len(present) / self.problem.clients
        counted_plan = replace(plan, cohort=len(present), seats=range(len(present)))
        state, rest = server_round(self.algorithm, counted_plan, self.checkpoint, uploads, share)
        self.checkpoint = replace(self.checkpoint, round=plan.round, state=state, rounded_off=rest)
        # A deployed client settles when the next download comes; here it can do so at once, and the sum can be logged.
        for cohort, memory in trained:
            settled = self.algorithm.settle(memory, self.state.model.to(cohort.device))
            cohort.keep(replace(settled, history=History(counted=plan.round)), memory)
        return uploads, values

    def _payload_bytes_down(self, present: list[int]) -> dict[int, int]:
        """Return how long the state is for each client, encoded: given the last one for who had that."""
        if not self.encodes:
            return {}
        entries = self._given.entries if self._given else None
        is_given = {client: entries is not None and client in self._keepers for client in present}
        lengths = {
            given: len(encode_state(self.state, given=entries if given else None)) for given in set(is_given.values())
        }
        return {client: lengths[given] for client, given in is_given.items()}

    def _payload_bytes_up(
        self, plan: RoundPlan, cohort: Cohort, counted: Upload, given: Given | None, first: int
    ) -> Sequence[int | None]:
        """Return how long the upload of each client is, encoded; None for those that are not."""
        if not self.encodes:
            return [None] * (1 if cohort.rows is None else len(counted.model))
        scale, entries = scale_of(plan), given.entries if given and self.algorithm.uploads_are_near else None
        return [
            None if place % self.encodes_every else len(encode_upload(one, scale, entries))
            for place, one in enumerate(cohort.uploads(counted), first)
        ]

    def _present(self, round_number: int) -> list[int]:
        """Return who takes part in a round."""
        clients = self.problem.clients
        count = max(1, round(self._participation * clients))
        if count == clients:
            return list(range(clients))
        generator = stream(self.experiment.seed, "participants", round_number)
        return sorted(generator.choice(clients, count, replace=False).tolist())

    def _seated(self, present: list[int]) -> list[tuple[Cohort, tuple[int, ...]]]:
        """Return the cohorts of those who take part, told who does, and which of these each row is."""
        if not self.problem.batched:
            return [(self.cohorts[client], (seat,)) for seat, client in enumerate(present)]
        self.cohorts[0].present = present
        seats = {client: seat for seat, client in enumerate(present)}
        return [(self.cohorts[0], tuple(seats.get(client, 0) for client in range(self.problem.clients)))]

    def _evaluate(self) -> dict[str, float]:
        kept = self.kept()
        loss = 0.0
        for cohort in self.cohorts:
            download = cohort.download(kept)
            loss += cohort.objective.loss(download.model, download.buffers).cpu().double().sum().item()
        return {**self.problem.evaluate(kept), "train_loss": loss / self.problem.clients}

    def _control_sum_norm(self) -> float | None:
        """Return how far the controls are from summing to zero; None without control variates."""
        return self._controls().relative_norm() if self.algorithm.has_control else None

    def _controls(self) -> ControlSum:
        controls = ControlSum()
        for cohort in self.cohorts:
            centred = self.algorithm.centred(self._memory_of(cohort), cohort.download(self.state))
            assert centred is not None
            controls.add(centred)
        return controls

    def _memory_of(self, cohort: Cohort) -> ClientMemory:
        """Return what clients will remember when the next round begins."""
        return self.algorithm.forget(cohort.memory, cohort.download(self.state))


def _values(upload: Upload) -> list[int]:
    """Return how many values of each client's upload the paper counts."""
    parts = [part for part in (upload.model, upload.control_change) if part is not None]
    counts = [torch.count_nonzero(part.reshape(-1, part.shape[-1]), dim=-1).tolist() for part in parts]
    return [sum(of_client) for of_client in zip(*counts, strict=True)]
