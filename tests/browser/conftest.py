"""One browser, one folder of runs and one watch for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="needs selenium: `make test-browser` installs it")

from tests.browser.watching import HOSTILE, made_hostile, simulate, watch
from tests.browser.window import DESKTOP, Window, new_window
from tests.harness.processes import free_port


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    with new_window(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture
def window(browser: Window) -> Window:
    browser.resize(DESKTOP)
    browser.prefer("light")
    browser.complaints()
    return browser


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three finished runs; the folder, the events and a client of one are hostile."""
    folder = tmp_path_factory.mktemp("runs")
    simulate(folder / "sparse", "sparse_proxskip")
    simulate(folder / "dense", "fedavg")
    made_hostile(folder / "sparse", folder / HOSTILE.replace("/", "|"))
    return folder


@pytest.fixture(scope="session")
def address(runs: Path) -> Iterator[str]:
    port = free_port()
    with watch(runs, port):
        yield f"http://127.0.0.1:{port}/"
