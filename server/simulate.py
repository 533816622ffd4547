"""All clients in one process: the deployed algorithm code without the network.

Where one objective can hold many clients (convex tasks), all of them run as one batch of rows; networks run client by
client. Either way every client does what it would do on its own machine, with the same random numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.algorithm import Algorithm, client_round
from common.errors import UserError
from common.experiment import Experiment
from common.sparsity import density_of
from common.task import Objective, Problem
from common.types import ClientMemory, RoundPlan, RoundRecord, ServerState, Upload
from server.aggregate import RunningMean

BITS_A_VALUE = 32  # as the paper counts: values only, their places for free


class DivergedError(UserError):
    """The model left the finite numbers."""


@dataclass
class Cohort:
    """Clients that run as one: the rows of one tensor, or a single client with a vector."""

    objective: Objective
    rows: int | None  # None: a single client, without a batch dimension
    memory: ClientMemory

    def spread(self, state: ServerState) -> ServerState:
        """Give every row the same download."""
        if self.rows is None:
            return state
        control = None if state.control is None else state.control.expand(self.rows, -1)
        return replace(state, model=state.model.expand(self.rows, -1), control=control)


def simulate(experiment: Experiment, problem: Problem) -> Iterator[tuple[RoundRecord, ServerState]]:
    """Run all rounds, giving each one's record and the model as it would be kept."""
    algorithm = experiment.algorithm
    state = algorithm.initial_state(problem.initial_state())
    cohorts = _cohorts(algorithm, problem, state.model)
    bits_up = 0.0
    for round_number in range(1, experiment.rounds + 1):
        started = time.perf_counter()
        plan = experiment.plan(round_number)
        density_down = density_of(state.model).item()
        state, sent = _round(algorithm, plan, state, cohorts)
        bits_up += BITS_A_VALUE * sent.values / problem.clients
        kept = algorithm.evaluated(state)
        evaluated = round_number % experiment.evaluate_every_rounds == 0 or round_number == experiment.rounds
        metrics = _evaluate(problem, cohorts, kept) if evaluated else {}
        _refuse_divergence(round_number, state, metrics)
        record = RoundRecord(
            round=round_number,
            local_steps=plan.local_steps,
            clients_counted=problem.clients,
            paper_bits_up=bits_up,
            density_up=sent.model_values / (problem.clients * state.model.shape[-1]),
            density_down=density_down,
            control_sum_norm=_control_sum_norm(algorithm, cohorts, state),
            seconds=time.perf_counter() - started,
            metrics=metrics,
        )
        yield record, kept


def _cohorts(algorithm: Algorithm, problem: Problem, model: Tensor) -> list[Cohort]:
    everyone = range(problem.clients)
    if problem.batched:
        memory = algorithm.initial_memory(model.expand(problem.clients, -1))
        return [Cohort(problem.objective(everyone), problem.clients, memory)]
    return [Cohort(problem.objective([client]), None, algorithm.initial_memory(model)) for client in everyone]


@dataclass
class Sent:
    """The nonzero values that all clients together uploaded in a round."""

    model_values: int = 0
    values: int = 0

    def add(self, upload: Upload) -> None:
        """Count the upload of one client or of a batch."""
        nonzeros = int(torch.count_nonzero(upload.model))
        self.model_values += nonzeros
        self.values += nonzeros
        if upload.control_change is not None:
            self.values += int(torch.count_nonzero(upload.control_change))


def _round(
    algorithm: Algorithm, plan: RoundPlan, state: ServerState, cohorts: list[Cohort]
) -> tuple[ServerState, Sent]:
    """Run one round on all clients; return the next state and what was uploaded."""
    average = RunningMean()
    sent = Sent()
    for cohort in cohorts:
        upload, cohort.memory = client_round(algorithm, plan, cohort.spread(state), cohort.memory, cohort.objective)
        average.add(upload)
        sent.add(upload)
    state = algorithm.aggregate(plan, state, average.mean())
    # A deployed client settles when the next download comes; here it can do so at once, and the sum can be logged.
    for cohort in cohorts:
        cohort.memory = algorithm.settle(plan, cohort.memory, cohort.spread(state))
    return state, sent


def _evaluate(problem: Problem, cohorts: list[Cohort], kept: ServerState) -> dict[str, float]:
    losses = [cohort.objective.loss(cohort.spread(kept).model, kept.buffers).double().sum() for cohort in cohorts]
    return {**problem.evaluate(kept), "train_loss": float(sum(losses)) / problem.clients}


def _control_sum_norm(algorithm: Algorithm, cohorts: list[Cohort], state: ServerState) -> float | None:
    """Return |mean of h_i| / mean of |h_i|, which is zero up to rounding while the sum of the h_i is."""
    if not algorithm.has_control:
        return None
    total = torch.zeros_like(state.model, dtype=torch.float64)
    norms = 0.0
    for cohort in cohorts:
        correction = algorithm.correction(cohort.memory, cohort.spread(state))
        assert correction is not None
        rows = correction.double().reshape(-1, correction.shape[-1])
        total += rows.sum(dim=0)
        norms += rows.norm(dim=-1).sum().item()
    return total.norm().item() / norms if norms else 0.0


def _refuse_divergence(round_number: int, state: ServerState, metrics: dict[str, float]) -> None:
    if not torch.isfinite(state.model).all() or not all(map(math.isfinite, metrics.values())):
        raise DivergedError(
            f"round {round_number}: the model is no longer finite; try a smaller algorithm.learning_rate"
        )
