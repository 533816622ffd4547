"""report.html: the page as a file, which asks nobody for anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.watch.report import page_with, report_of
from server.watch.run_view import RunView
from tests.browser.watching import HOSTILE
from tests.browser.window import Window

pytestmark = pytest.mark.browser

MANY_CLIENTS, MANY_POINTS, MANY_STRIPS = 200, 1000, 50


def open_file(window: Window, path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    window.open(path.as_uri())
    window.wait(lambda: window.all("main .panel"))


def assert_alone(window: Window) -> None:
    assert window.ask("return performance.getEntriesByType('resource').map((one) => one.name)") == []
    assert window.complaints() == []


def test_a_report_of_one_run(window: Window, runs: Path, tmp_path: Path) -> None:
    open_file(window, tmp_path / "report.html", report_of([RunView.read("sparse", runs / "sparse")]))
    assert window.text("h1") == "sparse"
    assert window.text(".feed").startswith("report")
    assert not window.all("a[download]")  # it is the report
    assert_alone(window)


def test_a_report_of_several(window: Window, runs: Path, tmp_path: Path) -> None:
    views = [RunView.read(name, runs / name) for name in ("sparse", "dense")]
    open_file(window, tmp_path / "report.html", report_of(views))
    window.wait_for_text(".answer", "To reach")
    window.find(".reach tbody a").click()
    window.wait_for_text("h1", "sparse")
    assert_alone(window)


def test_a_stopped_run_has_the_command_that_goes_on(window: Window, runs: Path, tmp_path: Path) -> None:
    command = "proxskip-server local --resume runs/sparse"
    banner = {"kind": "stopped", "title": "Stopped after round 20", "text": f"It goes on with: {command}"}
    run = RunView.read("sparse", runs / "sparse").whole() | {"state": "stopped", "command": command}
    run["banner"] = banner | {"clients": [], "deadline": None}
    open_file(window, tmp_path / "report.html", page_with({"runs": [run], "compare": None}))
    assert window.text(".banner .command code") == command
    assert window.text(".banner .command button") == "Copy"
    assert not window.all(".next")  # it has no model to speak of yet


def a_large_run(runs: Path) -> dict[str, Any]:
    """Return the most that watch tells of a run, with hostile names."""
    names = [f"{HOSTILE} {number}" for number in range(MANY_CLIENTS)]
    phases = {"download": 0.1, "train": 0.4, "encode": 0.02, "save": 0.1, "upload": 0.3}
    row = {"state": "late", "sign": "late", "state_text": "no answer for 23 s", "phases": phases, "phases_round": 1000}
    row |= {"total": 0.92, "mostly": "train 43 %", "link_bits_per_second": 1e6, "sent_bytes": 98000, "memory_mb": 369.0}
    places = list(range(1, MANY_POINTS + 1))
    strip = {"sign": "ok", "cells": "1234LM.1" * 25, "counted": 150, "late": 25, "missed": 25}
    banner = {
        "kind": "waiting",
        "title": f"Waiting for {names[0]}",
        "text": "",
        "clients": names[:10],
        "deadline": None,
    }
    run = RunView.read("sparse", runs / "sparse").whole()
    return run | {
        "banner": banner,
        "curve": {
            "round": places,
            "time": places,
            "sent": places,
            "score": [0.5 + 0.4 * place / 1000 for place in places],
        },
        "clients_table": [{"name": name, "missed": 1} | row for name in names],
        "strip": {
            "first_round": 801,
            "last_round": 1000,
            "bounds": [0.1, 0.2, 0.3, 1.0],
            "clients": [{"name": name} | strip for name in names[:MANY_STRIPS]],
        },
        "coefficients": [{"name": HOSTILE, "value": 1.5}, {"name": "age", "value": -0.5}],
    }


def test_the_most_there_can_be_takes_few_nodes(window: Window, runs: Path, tmp_path: Path) -> None:
    open_file(window, tmp_path / "large.html", page_with({"runs": [a_large_run(runs)], "compare": None}))
    assert window.text("button.name-link") == f"{HOSTILE} 0"
    assert "age" in window.text(".coefficients")
    assert HOSTILE in window.text(".coefficients")
    assert window.ask("return document.querySelectorAll('*').length") < 2000
    window.find(".clients footer button").click()
    window.wait(lambda: len(window.all(".clients tbody tr")) == MANY_CLIENTS)
    assert len(window.all("main canvas")) == 2  # the curve, and one for all strips
    assert_alone(window)


def test_the_memory_of_a_gpu_stands_beside_that_of_its_machine(window: Window, runs: Path, tmp_path: Path) -> None:
    run = a_large_run(runs)
    run["clients_table"][0]["vram_mb"] = 2048.0
    open_file(window, tmp_path / "report.html", page_with({"runs": [run], "compare": None}))
    with_gpu, without, *_ = [" ".join(cell.text.split()) for cell in window.all("td.memory")]
    assert (with_gpu, without) == ("369MB + GPU 2048MB", "369MB")  # a gap is drawn before units
