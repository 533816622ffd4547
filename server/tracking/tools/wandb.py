"""Weights & Biases: its server after `wandb login`, or with WANDB_MODE=offline files for `wandb sync`."""

from __future__ import annotations

import os
import shutil
from typing import ClassVar
from uuid import uuid4

from common.errors import UserError
from common.rounds.records import RoundRecord
from server.tracking.tracker import TrackedRun, Tracker, scalars

TOOL = "wandb"


class WeightsAndBiases(Tracker):
    """A run of the project that has our experiment's name."""

    package: ClassVar[str] = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        here_only = os.environ.get("WANDB_MODE") in ("offline", "disabled")
        if not here_only and not wandb.login(prompt=False):  # it would ask, in the middle of the view
            raise UserError("nobody is logged in: say `wandb login`, or set WANDB_MODE=offline")
        known = run.saved_id(TOOL)
        if known is None:
            known = uuid4().hex
            run.save_id(TOOL, known)
        if here_only:  # files are written anew when a run goes on
            shutil.rmtree(run.own_folder / "wandb", ignore_errors=True)
        self._run = wandb.init(
            project=run.experiment.name,
            id=known,
            name=run.name,
            resume="allow",
            dir=run.own_folder,
            config=run.parameters(),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.newest_round = max(0, int(self._run.starting_step) - 1)  # steps begin after the newest that is there

    def log(self, record: RoundRecord) -> None:
        """Send the round's numbers."""
        self._run.log(scalars(record), step=record.round)

    def close(self, *, finished: bool) -> None:
        """Say how the run ended."""
        self._run.finish(exit_code=0 if finished else 1)
