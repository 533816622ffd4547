"""While a run goes on: what is new appears, nothing jumps, and watch may go without harm to anybody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.watching import endless_run, watch
from tests.browser.window import Window
from tests.harness.processes import free_port, lines_in, wait_until

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def going(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that goes on."""
    folder = tmp_path_factory.mktemp("going") / "digits"
    with endless_run(folder):
        yield folder


def round_shown(window: Window) -> int:
    text = window.text(".figures [data-key=round] .value").split("/")[0]
    return int(text.replace(",", "").strip() or 0)


def tops(window: Window) -> list[int]:
    """Return where the panels begin."""
    panels = [".figures", ".split", ".clients", ".strip", ".settings"]
    found: list[int] = window.ask("return arguments[0].map((one) => document.querySelector(one).offsetTop)", panels)
    return found


def test_rounds_arrive_and_nothing_jumps(window: Window, going: Path) -> None:
    port = free_port()
    with watch(going.parent, port):
        window.open(f"http://127.0.0.1:{port}/#/run/digits")
        window.wait(lambda: round_shown(window) > 0 and window.all(".clients tbody tr"))
        before, first = tops(window), round_shown(window)
        window.ask("document.querySelector('.events ol').focus()")
        window.ask("document.querySelector('.settings details').open = true")
        window.wait(lambda: round_shown(window) > first + 3)
        assert tops(window) == before
        assert window.ask("return document.activeElement.ariaLabel") == "Events"
        assert window.ask("return document.querySelector('.settings details').open")
        assert len(window.all(".clients tbody tr")) == 2
        assert window.complaints() == []


def test_what_is_typed_stays_while_the_list_changes(window: Window, going: Path) -> None:
    port = free_port()
    with watch(going.parent, port):
        window.open(f"http://127.0.0.1:{port}/")
        window.wait_for_text(".runs", "digits")
        window.find(".filter").send_keys("dig")
        shown = window.text(".runs td.round")
        window.wait(lambda: window.text(".runs td.round") != shown)
        assert window.find(".filter").get_attribute("value") == "dig"
        assert window.ask("return document.activeElement.className") == "filter"


def test_watch_may_be_killed_and_come_back(window: Window, going: Path) -> None:
    port = free_port()
    with watch(going.parent, port) as process:
        window.open(f"http://127.0.0.1:{port}/#/run/digits")
        window.wait(lambda: round_shown(window) > 0)
        process.kill()
        window.wait_for_text(".feed", "watch is gone")
    last = round_shown(window)
    assert last > 0  # what was read is still shown
    rounds = lines_in(going / "rounds.jsonl")
    wait_until(lambda: lines_in(going / "rounds.jsonl") > rounds + 5)  # the run does not care
    with watch(going.parent, port):
        window.wait_for_text(".feed", "live")
        window.wait(lambda: round_shown(window) > last)
