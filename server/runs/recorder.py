"""What happens to every round of a run, deployed or simulated: clients.jsonl, journal, rounds.jsonl, view."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import uuid4

from torch import Tensor

from common.experiment.experiment import Experiment
from common.learning.task import Problem
from common.rounds.ledger import Checkpoint
from common.rounds.records import RoundRecord
from common.rounds.state import ServerState
from common.say import Event, Say
from common.storage.disk import when_there_is_room
from server.model.finished import FinishedModel
from server.runs.events import EventLog
from server.runs.journal import Journal, JournalEntry
from server.runs.run_folder import RunFolder
from strategies.flower.listener import Listener


class Recorder(Listener):
    """Keeps a run in its folder; where the disk is full it waits: a run that goes on is worth more than one that ends.

    The journal is written before rounds.jsonl: a run that is killed in between then finds its last line there. What is
    each client's own is written before the journal, which need not have it too: a line too many is cut off. With some
    seconds between its entries a crash costs the rounds since the last one, which come out the same when they are done
    again. All that is said is kept as well.
    """

    def __init__(
        self,
        folder: RunFolder,
        experiment: Experiment,
        resume_from: JournalEntry | None = None,
        *,
        show: Callable[[RoundRecord], None],
        say: Say,
        run: str = "",
        seconds_between_entries: float = 0.0,
    ) -> None:
        self._folder = folder
        self._experiment = experiment
        self._journal = Journal(folder.path, experiment)
        self._show = show
        self._events = EventLog(folder, say)
        self._seconds_between_entries = seconds_between_entries
        self._last_entry = time.monotonic()
        self._newest = resume_from.record if resume_from else None
        self.model: FinishedModel | None = None  # the final one
        self.run = resume_from.run if resume_from else run or uuid4().hex
        when_there_is_room(lambda: folder.go_back_to(self._newest), self.say)
        self._events.note(_first_event(experiment, self._newest))

    def begin(self, checkpoint: Checkpoint) -> None:
        """Note how a run starts: clients then know it by its name even if it is killed in its first round."""
        self._write_journal(checkpoint)

    def on_round(
        self,
        record: RoundRecord,
        checkpoint: Checkpoint,
        controls: Sequence[Tensor | None] = (),
        before: Tensor | None = None,
    ) -> None:
        """Keep a round; `controls` and the model `before` it are of simulated clients: nobody else remembers them."""
        self._newest = record
        if record.by_client:
            when_there_is_room(lambda: self._folder.add_clients(record), self.say)
        if time.monotonic() - self._last_entry >= self._seconds_between_entries:
            self._write_journal(checkpoint, controls, before)
        when_there_is_room(lambda: self._folder.add_round(record), self.say)
        self._show(record)

    def on_recentring(self, checkpoint: Checkpoint) -> None:
        """Keep the ledger as it is now."""
        self._write_journal(checkpoint)

    def say(self, text: str) -> None:
        """Keep what an operator should know, and pass it on."""
        self._events.say(text)

    def finish(self, problem: Problem, state: ServerState) -> None:
        """Keep the final model: with it, the run is finished."""
        model = self.model = FinishedModel.of(self._experiment, problem, state, self._newest)
        when_there_is_room(lambda: self._folder.save_model(model), self.say)
        self._events.note(Event(f"finished after round {self._newest.round if self._newest else 0}", kind="finished"))

    def _write_journal(
        self, checkpoint: Checkpoint, controls: Sequence[Tensor | None] = (), before: Tensor | None = None
    ) -> None:
        entry = JournalEntry(run=self.run, checkpoint=checkpoint, record=self._newest, controls=controls, before=before)
        self._folder.wait_for_disk()  # of the lines before: the journal has the newest record only
        when_there_is_room(lambda: self._journal.write(entry), self.say)
        self._last_entry = time.monotonic()


def _first_event(experiment: Experiment, last: RoundRecord | None) -> Event:
    """Return how a process takes up a run."""
    if last is None:
        return Event(
            f"started {experiment.name}: {experiment.rounds} rounds, {experiment.clients} clients", kind="started"
        )
    return Event(f"going on after round {last.round} of {experiment.rounds}", kind="resumed")
