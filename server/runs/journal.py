"""What the server must not forget: written after every round of a deployed run, before anything of the next is sent.

A server that is killed at any moment goes on from here. Whatever it had done of the next round is done again, and comes
out the same: plans are functions of the seed, and clients that were done with the round send the same bytes again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from common.errors import UserError
from common.experiment.experiment import Experiment
from common.rounds.history import History
from common.rounds.ledger import Checkpoint, Ledger
from common.rounds.records import RoundRecord
from common.rounds.state import ServerState
from common.storage.durable import read_durable, write_durably
from common.vectors.remainder import Remainder

FILE = "journal.safetensors"
FORMAT = 4


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """The run after one of its rounds."""

    run: str  # the name that clients remember it by
    checkpoint: Checkpoint
    record: RoundRecord | None  # of the last round; None before the first
    controls: Sequence[Tensor | None] = ()  # of the clients, in a simulation, where nobody else keeps them
    before: Tensor | None = None  # the model that the last round started from, in a simulation


class Journal:
    """The file in a run's folder that holds the newest entry."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.path = folder / FILE
        self._digest = hashlib.sha256(experiment.to_yaml().encode()).hexdigest()

    def write(self, entry: JournalEntry) -> None:
        """Replace the entry."""
        checkpoint, state, ledger = entry.checkpoint, entry.checkpoint.state, entry.checkpoint.ledger
        tensors: dict[str, Tensor | None] = {
            "model": state.model,
            "control": state.control,
            "buffers": state.buffers,
            # The newest average is the model itself.
            "shift": ledger.shift,
            "rounded_off": checkpoint.rounded_off.tensor() if checkpoint.rounded_off else None,
            **{f"average {one}": average for one, average in ledger.averages.items() if one != checkpoint.round},
            **{f"control {place}": control for place, control in enumerate(entry.controls)},
            "before": entry.before,
        }
        metadata = {
            "format": FORMAT,
            "run": entry.run,
            "experiment": self._digest,
            "round": checkpoint.round,
            "members": {name: asdict(history) for name, history in ledger.members.items()},
            "identities": dict(checkpoint.identities),
            "put_out": dict(checkpoint.put_out),
            "averages": list(ledger.averages),
            "off_centre": ledger.off_centre,
            "recentrings": ledger.recentrings,
            "awaiting": sorted(ledger.awaiting),
            "bits_up": checkpoint.bits_up,
            "unit": state.unit,
            "controls": len(entry.controls),
            "record": entry.record.to_json() if entry.record else None,
        }
        write_durably(self.path, tensors, {"journal": json.dumps(metadata, allow_nan=False)})

    def read(self) -> JournalEntry | None:
        """Return the newest entry; None if none was ever written."""
        saved = read_durable(self.path, "a run's journal")
        if saved is None:
            return None
        tensors, metadata = saved
        try:
            known = json.loads(metadata["journal"])
            if known.get("format") != FORMAT:
                raise UserError(
                    f"{self.path} was written by another version, which keeps other things in it: "
                    "go on with that version, or begin a new run"
                )
            if known["experiment"] != self._digest:
                raise UserError(f"{self.path} is of another experiment than the experiment.yaml beside it")
            model = tensors["model"]
            checkpoint = Checkpoint(
                round=known["round"],
                state=ServerState(
                    model=model,
                    control=tensors.get("control"),
                    buffers=tensors.get("buffers"),
                    unit=float(known["unit"]),
                ),
                ledger=_ledger(known, tensors),
                identities=known["identities"],
                put_out=known["put_out"],
                bits_up=known["bits_up"],
                rounded_off=Remainder.of(tensors["rounded_off"]) if "rounded_off" in tensors else None,
            )
            record = RoundRecord.of_json(known["record"]) if known["record"] else None
            controls = [tensors.get(f"control {place}") for place in range(known["controls"])]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.path} is not a run's journal: {error!r}") from None
        return JournalEntry(
            run=known["run"],
            checkpoint=checkpoint,
            record=record,
            controls=controls,
            before=tensors.get("before"),
        )


def _ledger(known: dict[str, Any], tensors: dict[str, Tensor]) -> Ledger:
    return Ledger(
        members={name: History(**history) for name, history in known["members"].items()},
        averages={one: tensors.get(f"average {one}", tensors["model"]) for one in known["averages"]},
        off_centre=known["off_centre"],
        recentrings=known["recentrings"],
        shift=tensors.get("shift"),
        awaiting=frozenset(known["awaiting"]),
    )
