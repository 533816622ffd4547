"""What it costs not to forget: a client's memory before each upload, the server's journal after each round."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from bench.measure import Ratio, median_seconds
from bench.vectors import one_pass
from client.memory import MemoryFile
from common.codec.payload import encode_upload
from common.experiment.files import load_experiment
from common.rounds.history import History
from common.rounds.ledger import Checkpoint, Ledger
from common.rounds.state import ClientMemory, Pending, ServerState, Upload
from common.vectors.sparsity import top_k
from server.runs.journal import Journal, JournalEntry

REPETITIONS = 5


def run(vector: Tensor) -> list[Ratio]:
    """Return the time of both in copies of the model, the disk's own time included."""
    experiment = load_experiment("cifar10")
    sent = top_k(vector, 0.1)
    encoded = encode_upload(Upload(model=sent))
    pending = Pending(plan=experiment.plan(1), reference=None, sent=encoded)
    memory = ClientMemory(control=torch.ones_like(vector), pending=pending)
    members = {"client-0": History(counted=1)}
    checkpoint = Checkpoint(
        round=1,
        state=ServerState(model=sent),
        ledger=Ledger(members=members, averages={1: sent}),
    )
    with tempfile.TemporaryDirectory(dir=".") as name:  # on the disk of this repository, as /tmp may be none
        file, journal = MemoryFile(Path(name), "client-0", "bench"), Journal(Path(name), experiment)
        actions = {
            "copy": one_pass(vector),
            "client's memory": lambda: file.save(memory),
            "server's journal": lambda: journal.write(JournalEntry(run="bench", checkpoint=checkpoint, record=None)),
        }
        seconds = median_seconds(actions, REPETITIONS)
    unit = seconds.pop("copy")
    size = f"{len(vector) / 1e6:.1f} M"
    return [Ratio(f"{what} written / copy, {size}", time / unit, None) for what, time in seconds.items()]
