"""A client that has the name of another, and comes first when the server was started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.experiment.files import load_experiment
from common.messages.messages import Run
from common.rounds.ledger import Checkpoint
from common.say import Event
from server.link.hub import Hub
from server.runs.journal import Journal, JournalEntry
from strategies.flower import roster as roster_module
from tests.harness.loopback import LoopbackClient
from tests.harness.raw_stream import RawStream
from tests.harness.trial import CLIENTS, VICTIM, Trial, experiment_of

DOUBLE = 9  # a node


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.flower.strategy.FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(roster_module, "SECONDS_BETWEEN_SECOND_LOOKS", 0.05)


class CrashError(Exception):
    """The server's end."""


def crashed(folder: Path) -> Checkpoint:
    """Run some rounds, and return what the journal says after the crash."""

    def crash(_: Trial) -> None:
        raise CrashError

    trial = Trial(experiment_of(), folder / "state", after={5: crash})
    with pytest.raises(CrashError):
        trial.go()
    journal = Journal(folder, experiment_of())
    journal.write(JournalEntry(run="trial", checkpoint=trial.strategy.checkpoint, record=trial.records[-1]))
    entry = journal.read()
    assert entry is not None
    return entry.checkpoint


def with_a_double(folder: Path, checkpoint: Checkpoint) -> Trial:
    """Return a run that goes on, of which client-1 has not come yet, but another that calls itself so."""
    trial = Trial(experiment_of(), folder / "state", resume_from=checkpoint)
    run = Run(experiment=trial.strategy.experiment, name="trial")
    trial.grid.clients = {DOUBLE: LoopbackClient(1, folder / "double", run), **trial.clients}
    del trial.grid.clients[VICTIM]
    return trial


def test_the_client_that_the_journal_knows_is_waited_for(tmp_path: Path) -> None:
    """Before, the double was in, the control of the real one was thrown away, and that one was left out."""
    trial = with_a_double(tmp_path, crashed(tmp_path))

    def heard(text: str) -> None:
        if "this one is left out" in text:
            trial.grid.clients[VICTIM] = trial.clients[VICTIM]

    trial._heard = heard
    trial.go()
    assert trial.strategy.members.roster.nodes["client-1"] == VICTIM
    assert trial.counted == [CLIENTS] * 7
    assert not any("has lost its control variate" in text for text in trial.said)
    assert max(trial.audits) < 1e-5


def test_a_client_whose_folder_is_lost_is_let_in_after_a_while_and_starts_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster_module, "GATHERING_SECONDS", 0.3)
    trial = with_a_double(tmp_path, crashed(tmp_path)).go()
    told = [text for text in trial.said if "has another state folder (--state)" in text]
    assert len(told) == 1
    assert sum("client-1 has lost its control variate" in text for text in trial.said) == 1
    kinds = [text.kind for text in trial.said if isinstance(text, Event)]
    assert kinds.index("left out") < kinds.index("given up") < kinds.index("re-centred")
    assert trial.counted == [CLIENTS] * 7
    assert max(trial.audits) < 1e-5
    known = trial.strategy.checkpoint.identities
    assert known["client-1"] == (tmp_path / "double" / "client-1.identity").read_text()
    assert known["client-0"] == (tmp_path / "state" / "client-0.identity").read_text()


def test_the_client_that_a_run_knows_takes_its_place_on_the_link_from_a_double() -> None:
    run = Run(experiment=load_experiment("digits"), name="run")
    with (
        Hub("127.0.0.1:0", say=lambda _: None) as hub,
        hub.run(run) as grid,
        RawStream.in_the_clear(hub.address).hello("a", identity="double") as double,
    ):
        double.hear_until("welcome")
        with RawStream.in_the_clear(hub.address).hello("a", identity="real") as early:
            assert "another client is called a already" in early.hear_until("refused").refused.reason
        grid.know({"a": "real"})
        with RawStream.in_the_clear(hub.address).hello("a", identity="real") as real:
            real.hear_until("welcome")
            refused = double.hear_until("refused").refused
            assert refused.final
            assert "another process that is a has taken its place" in refused.reason
            with RawStream.in_the_clear(hub.address).hello("a", identity="double") as again:
                assert "another client is called a already" in again.hear_until("refused").refused.reason
