"""Clients without a network that follow the protocol, and lie in what they send."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from client.round import Participant
from common.codec.payload import checksum_of, decode_upload, encode_upload
from common.codec.places import entries_of
from common.codec.vector import Known
from common.experiment.experiment import Experiment
from common.messages.messages import Order, Report, Run
from common.rounds.ledger import Checkpoint
from common.rounds.state import Upload
from common.storage.spool import Spool
from strategies.flower.terms import Terms
from tests.harness.loopback import Fate, LoopbackClient, LoopbackGrid
from tests.harness.witness import Witness

Lie = Callable[[Upload, Order], Upload]


def liar(lie: Lie) -> type[Participant]:
    """Return a client that trains like any other, and sends something else."""

    class Liar(Participant):
        def train(self, order: Order) -> Report[bytes | Spool]:
            known = Known(given=entries_of(order.state.model), step=order.plan.step or None)
            report = super().train(order)
            pending = self._memory.pending
            if pending is None or not report.seconds:  # it is asked again, and sends the same
                return report
            received = decode_upload(report.upload, self.like, known=known)
            honest = Upload(
                model=received.model.dense(),
                control_change=None if received.control_change is None else received.control_change.dense(),
                buffers=None if received.buffers is None else received.buffers.dense(),
            )
            lied = encode_upload(lie(honest, order))
            # It remembers what it sent, as one that does not would be found out by its history.
            self._memory = replace(
                self._memory, pending=replace(pending, sent=lied, given=0, checksum=checksum_of(lied))
            )
            return replace(report, upload=lied, given=0)

    return Liar


def showing(control: Callable[[Tensor], Tensor]) -> type[Participant]:
    """Return a client that shows another control variate than it has."""

    class Pretender(Participant):
        def correction(self, order: Order) -> Tensor:
            return control(super().correction(order))

    return Pretender


def scaled(factor: float) -> Lie:
    return lambda upload, order: replace(upload, model=_within(factor * upload.model.double()))


def flipped(upload: Upload, _: Order) -> Upload:
    """Send the model with all signs turned, and as sparse as it is."""
    return replace(upload, model=torch.where(upload.model != 0, -upload.model, 0.0))


def noise(upload: Upload, order: Order) -> Upload:
    """Send a model of the right norm at the right number of places, by chance, but as all who lie so."""
    chance = torch.Generator().manual_seed(order.plan.round)
    drawn = torch.zeros_like(upload.model)
    places = torch.randperm(len(drawn), generator=chance)[: int(upload.model.count_nonzero())]
    drawn[places] = torch.randn(len(places), generator=chance)
    return replace(upload, model=drawn * upload.model.norm() / drawn.norm())


LIES: dict[str, Lie] = {"noise": noise, "flipped signs": flipped, "ten times the model": scaled(10.0)}


def _within(values: Tensor) -> Tensor:
    largest = torch.finfo(torch.float32).max
    return values.clamp(-largest, largest).float()


def federation(
    experiment: Experiment,
    state: Path | None,
    liars: Collection[int],
    kind: type[Participant],
    terms: Terms | None = None,
    resume_from: Checkpoint | None = None,
) -> Witness:
    """Run an experiment of which some clients are of another kind."""
    run = Run(experiment=experiment, name="hostile")
    clients = {
        index + 1: LoopbackClient(index, state, run, kind=kind if index in liars else Participant)
        for index in range(experiment.clients)
    }
    return Witness(experiment, terms, resume_from=resume_from).run(LoopbackGrid(clients, lambda _: Fate.ANSWERED))
