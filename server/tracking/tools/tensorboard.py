"""TensorBoard: event files in RUN_DIR/tracked/tensorboard, which `tensorboard --logdir runs` finds."""

from __future__ import annotations

import shutil
from typing import ClassVar

from common.rounds.records import RoundRecord
from server.tracking.tracker import TrackedRun, Tracker, scalars, unix_seconds

SECONDS_BETWEEN_WRITES = 5


class TensorBoard(Tracker):
    """Event files, written anew when a run goes on: all that is in them is in rounds.jsonl too."""

    package: ClassVar[str] = "tensorboardX"

    def __init__(self, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        folder = run.own_folder / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        # A TensorBoard that is open forgets the steps it has seen: they come again.
        self._writer = SummaryWriter(str(folder), purge_step=1, flush_secs=SECONDS_BETWEEN_WRITES)
        lines = (f"    {key}: {value}" for key, value in run.parameters().items())
        self._writer.add_text("experiment", "\n".join(lines))  # indented, so that TensorBoard shows it as it is

    def log(self, record: RoundRecord) -> None:
        """Write the round's numbers."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round, walltime=unix_seconds(record))

    def close(self, *, finished: bool) -> None:
        """Write out what is left."""
        self._writer.close()
