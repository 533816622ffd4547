"""The same over real streams, with honest clients in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.link.hub import Hub
from strategies.flower.terms import Terms
from tests import test_malice
from tests.harness.processes import deploy
from tests.test_malice import Mallory, bundle_of, experiment_of, report, sparse

hub = test_malice.hub

pytestmark = pytest.mark.slow


def test_whoever_sends_3e38_is_put_out_and_the_others_go_on(hub: Hub, tmp_path: Path) -> None:
    """With default terms, in which all clients are needed."""
    with Mallory(hub.address, bundle_of(tmp_path), [lambda number: report(number, sparse(3e38))]):
        run = deploy(hub, experiment_of(6), Terms(audit_every_rounds=6))
    assert run.counted == [2] * 6
    assert [text for text in run.said if "client-2 is put out: it sent a change of the model of norm" in text]
    assert float(run.model.norm()) < 100
    assert max(run.audits) < 1e-5


def test_a_liar_that_was_counted_before_leaves_a_sum_of_zero(hub: Hub, tmp_path: Path) -> None:
    tricks = [lambda number: report(number, sparse(0.01 if number < 3 else 1e30))]
    with Mallory(hub.address, bundle_of(tmp_path), tricks):
        run = deploy(hub, experiment_of(6), Terms(audit_every_rounds=6))
    assert run.counted == [3, 3, 2, 2, 2, 2]
    assert sum("2 members are re-centred" in text for text in run.said) == 1
    assert max(run.audits) < 1e-5


def test_whoever_shows_something_else_than_a_control_variate_is_put_out(hub: Hub, tmp_path: Path) -> None:
    """Else it would keep the others from being re-centred for ever."""
    with Mallory(hub.address, bundle_of(tmp_path), [lambda number: report(number, sparse(0.01))]):
        run = deploy(hub, experiment_of(6), Terms(audit_every_rounds=2))
    assert run.counted == [3, 3, 2, 2, 2, 2]
    assert any("client-2 is put out: it showed no control variate" in text for text in run.said)
    assert [record.round for record in run.records if record.control_sum_norm is not None] == [4, 6]
    assert max(run.audits) < 1e-5
