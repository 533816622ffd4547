"""Files of a run that somebody has edited, exchanged or locked away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import UserError
from common.rounds.ledger import Checkpoint
from common.rounds.records import RoundRecord
from server.runs.journal import Journal, JournalEntry
from server.runs.recorder import Recorder
from server.runs.run_folder import RunFolder
from tests.harness.small_disk import needs_root, remount, small_disk
from tests.harness.trial import CLIENTS, VICTIM, Trial, experiment_of


def edited(change: Callable[[dict[str, object]], object]) -> Callable[[str], str]:
    def edit(line: str) -> str:
        values = json.loads(line)
        change(values)
        return json.dumps(values)

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        lambda _: "",
        lambda _: "not JSON",
        lambda _: "[]",
        lambda _: '"2"',
        lambda line: line[:-20],
        lambda line: f"{line}\n{line}",
        edited(lambda values: values.pop("clients_missing")),
        edited(lambda values: values.update(mine=1)),
        edited(lambda values: values.update(round=-1)),
        edited(lambda values: values.update(round=99)),
        edited(lambda values: values.update(round="x")),
        edited(lambda values: values.update(traffic_beside_training=3)),
    ],
)
def test_an_edited_line_of_rounds_does_not_end_a_run_that_goes_on(edit: Callable[[str], str], tmp_path: Path) -> None:
    """Before, some of these were found when the run was over, in place of its summary."""
    experiment = experiment_of(rounds=4)
    records = Trial(experiment, None).go().records
    folder = RunFolder.create(tmp_path / "run", experiment, "digits")
    path = folder.path / "rounds.jsonl"
    lines = [record.to_json() for record in records]
    path.write_text("\n".join([lines[0], edit(lines[1]), lines[2]]) + "\n")
    folder.go_back_to(records[3])
    found = [record.round for record in folder.rounds()]
    assert found in ([1, 3, 4], [1, 2, 3, 4])
    assert found == sorted(set(found))


@needs_root
def test_a_client_whose_disk_may_not_be_written_to_says_so_and_goes_on_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4096) as disk:
        trial = Trial(experiment_of(), disk, after={4: lambda _: remount(disk, "ro")})
        with pytest.raises(UserError, match=r"round 5 cannot be done: .*client-0: it cannot write to its disk"):
            trial.go()
        remount(disk, "rw")
        second = Trial(experiment_of(), disk, resume_from=trial.journal).go()
        assert second.counted == [CLIENTS] * 8
        assert not any("has lost" in text for text in second.said)
        assert max(second.audits) < 1e-5


@needs_root
def test_a_journal_on_a_disk_that_may_not_be_written_to_is_one_line(tmp_path: Path) -> None:
    experiment = experiment_of(rounds=4)
    with small_disk(tmp_path / "disk", 4096) as disk:
        folder = RunFolder.create(disk / "run", experiment, "digits")
        recorder = Recorder(folder, experiment, None, show=lambda _: None, say=lambda _: None)
        record, checkpoint = last_of(Trial(experiment, None).go())
        remount(disk, "ro")
        with pytest.raises(UserError, match=r"cannot write .*Read-only file system"):
            recorder.on_round(record, checkpoint)
        remount(disk, "rw")
        recorder.on_round(record, checkpoint)
        assert [one.round for one in folder.rounds()] == [record.round]


def last_of(trial: Trial) -> tuple[RoundRecord, Checkpoint]:
    assert trial.journal is not None
    return trial.records[-1], trial.journal


def test_a_journal_of_another_run_costs_the_controls_and_not_the_sum(tmp_path: Path) -> None:
    """The same experiment, begun twice: what clients remember is of the other one."""
    experiment = experiment_of()

    class StopError(Exception):
        """The server's end."""

    def stop(_: Trial) -> None:
        raise StopError

    foreign = Trial(experiment, tmp_path / "foreign", after={6: stop})
    with pytest.raises(StopError):
        foreign.go()
    own = Trial(experiment, tmp_path / "own", after={4: stop})
    with pytest.raises(StopError):
        own.go()
    journal = Journal(tmp_path, experiment)
    _, checkpoint = last_of(foreign)
    journal.write(JournalEntry(run="trial", checkpoint=checkpoint, record=None))
    entry = journal.read()
    assert entry is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strategies.flower.strategy.FIRST_PAUSE_SECONDS", 0.0)
        patch.setattr("strategies.flower.roster.GATHERING_SECONDS", 0.1)
        patch.setattr("strategies.flower.roster.SECONDS_BETWEEN_SECOND_LOOKS", 0.05)
        second = Trial(experiment, tmp_path / "own", resume_from=entry.checkpoint).go()
    assert sum("has lost its control variate" in text for text in second.said) == CLIENTS
    assert f"client-{VICTIM}" in second.strategy.members.roster.nodes
    assert max(second.audits) < 1e-5
