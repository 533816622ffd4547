"""A model given another: both sides have the same one, or say so and go on with a whole one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Message

from common.codec.given import Given, given_to_uploads
from common.codec.payload import encode_upload
from common.codec.scales import Grid
from common.errors import NotKeptError
from common.experiment.files import load_experiment
from common.messages import messages as wire
from common.messages.messages import Run
from common.rounds.history import History
from common.rounds.records import PeakMemory
from common.rounds.state import Precision, RoundPlan, ServerState, Upload
from common.vectors.sparsity import top_k
from server.simulation.simulation import Simulation
from strategies.flower.terms import Terms
from tests.harness.loopback import Fate, LoopbackClient, LoopbackGrid
from tests.harness.witness import CPU, Witness, load

STEP = 2.0**-5
PLAN = RoundPlan(round=3, local_steps=4, probability=0.25, learning_rate=0.1, density=0.1, precision="grid", step=STEP)
CLIENTS = 3


def on_grid(seed: int, size: int = 300) -> torch.Tensor:
    """Return a sparse model on the grid."""
    values = top_k(torch.randn(size, generator=torch.Generator().manual_seed(seed)), 0.1)
    return torch.round(values / STEP) * STEP + 0.0


def given(seed: int, size: int = 300) -> Given:
    found = Given.of(on_grid(seed, size))
    assert found is not None
    return found


@pytest.mark.parametrize("size", [300, 100_000])
def test_an_order_is_read_given_the_model_that_it_names(size: int) -> None:
    before, state = given(1, size), ServerState(model=on_grid(2, size) / 3, unit=STEP / 3)
    content = wire.pack_order("train", wire.pack_state(state, given=before), PLAN, History(), before)
    order = wire.unpack_order(content, state, {before.digest: before}.get)
    assert order.plan == PLAN
    assert order.state.model.equal(state.model)
    with pytest.raises(NotKeptError, match="does not have"):
        wire.unpack_order(content, state, {given(3, size).digest: given(3, size)}.get)
    with pytest.raises(NotKeptError, match="does not have"):
        wire.unpack_order(content, state)


@pytest.mark.parametrize("size", [300, 100_000])
def test_an_upload_given_another_model_than_was_sent_is_noticed(size: int) -> None:
    sent, upload = given(1, size), Upload(model=on_grid(2, size))
    encoded = encode_upload(upload, Grid(STEP), sent.entries)
    report = wire.Report(client="a", round=3, seconds={}, peak=PeakMemory(1.0), upload=encoded, given=sent.digest)
    like, content = ServerState(model=upload.model), wire.pack_report(report)
    assert wire.unpack_report(content, like, None, sent, STEP).upload.model.dense().equal(upload.model)
    for other in (given(3, size), None):
        with pytest.raises(NotKeptError, match="another model"):
            wire.unpack_report(content, like, None, other, STEP)


def test_models_that_differ_in_a_place_or_in_a_bit_have_other_digests() -> None:
    model = on_grid(1)
    moved, changed = model.roll(1), model.clone()
    changed[int(model.nonzero()[0])] += STEP
    digests = {found.digest for one in (model, moved, changed) if (found := Given.of(one))}
    assert len(digests) == 3


def notice(count: int) -> None:
    """Change a model in a value, in a bit or in a place so many times; each time the upload must be refused."""
    generator = np.random.default_rng(6)
    sent, upload = given(1), Upload(model=on_grid(2))
    encoded = encode_upload(upload, Grid(STEP), sent.entries)
    report = wire.Report(client="a", round=3, seconds={}, peak=PeakMemory(1.0), upload=encoded, given=sent.digest)
    like, content = ServerState(model=upload.model), wire.pack_report(report)
    for _ in range(count):
        other = on_grid(1).numpy()
        where = generator.choice(np.flatnonzero(other), size=int(generator.integers(1, 4)), replace=False)
        kind = generator.integers(3)
        if kind == 0:
            other[where] += generator.choice([-2, -1, 1, 2], where.size) * STEP
        elif kind == 1:
            other.view(np.uint32)[where] ^= np.uint32(1 << int(generator.integers(0, 23)))
        else:
            other[where], other[(where + 1) % other.size] = 0, other[where] + 4
        wrong = Given.of(torch.from_numpy(other))
        with pytest.raises(NotKeptError, match="another model"):
            wire.unpack_report(content, like, None, wrong, STEP)


def test_a_wrong_model_is_noticed() -> None:
    notice(200)


@pytest.mark.slow
def test_a_wrong_model_is_noticed_always() -> None:
    notice(20_000)


@pytest.mark.parametrize(
    ("precision", "size", "is_given"), [("grid", 300, True), ("grid", 100_000, False), ("float32", 300, False)]
)
def test_a_dense_model_that_tells_little_is_given_to_nobody(precision: Precision, size: int, is_given: bool) -> None:
    plan = RoundPlan(round=1, local_steps=1, probability=1.0, learning_rate=0.1, density=0.1, precision=precision)
    assert (given_to_uploads(plan, torch.ones(size)) is not None) == is_given
    assert given_to_uploads(plan, torch.eye(1, size)[0]) is not None


@pytest.mark.parametrize("precision", ["float32", "grid"])
def test_a_client_that_has_lost_the_last_model_is_sent_a_whole_one_and_the_run_is_the_same(precision: str) -> None:
    """It says that it does not have it, the round is asked for again, and nothing else changes."""
    settings = [f"clients={CLIENTS}", "rounds=6", "schedule.period=4", f"codec.precision={precision}"]
    experiment = load_experiment("digits", [*settings, "algorithm.name=fediht"])  # without a control to lose as well
    run = Run(experiment=experiment, name="run")
    clients = {index + 1: LoopbackClient(index, None, run) for index in range(CLIENTS)}
    forgot: list[int] = []

    def fate(message: Message) -> Fate:
        if message.metadata.group_id == "4" and message.metadata.dst_node_id == 2 and not forgot:
            forgot.append(2)
            clients[2].kill()
        return Fate.ANSWERED

    grid = LoopbackGrid(clients, fate)
    witness = Witness(experiment, Terms()).run(grid)
    simulation = Simulation(experiment, load(experiment), CPU)
    assert [record.clients_counted for record in simulation.rounds()] == [CLIENTS] * 6
    assert forgot
    assert any("does not have" in text for text in witness.said)
    assert float((witness.model - simulation.state.model).norm() / simulation.state.model.norm()) < 1e-5
