"""Runs side by side: what the table says in words, and the demo, whole."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from server.runs.report import SENT, RunInComparison, ToReach, comparison, comparison_sentences
from server.runs.run_folder import RunFolder

REPOSITORY = Path(__file__).parent.parent


def test_a_comparison_says_who_needs_least_and_cuts_nothing_off() -> None:
    def row(name: str, density: float, *bits: float | None) -> RunInComparison:
        costs = [ToReach(level=level, upload_bits=one) for level, one in zip((0.8, 0.9, 0.95), bits, strict=True)]
        return RunInComparison(
            name=name, density=density, final=density, best=1.0, upload_bits=8e6, bits_a_value=5.0, to_reach=costs
        )

    long_name = "a_method_whose_name_is_longer_than_any_other"
    rows = [row(long_name, 0.1, 8e4, 8e5, None), row("other", 0.1, 4e4, None, None), row("dense", 1.0, 8e4, 4e5, None)]
    assert comparison_sentences(rows, SENT) == [
        f"To reach 0.8, other uploads the least: 5.0 kB per client. {long_name} uploads 2 times as much and dense "
        "uploads 2 times as much.",
        f"To reach 0.9, dense uploads the least: 50.0 kB per client. {long_name} uploads 2 times as much; other does "
        "not get there.",
        "No run reaches 0.95.",
        f"dense keeps all weights and ends at 1.0000; {long_name} keeps 10 % and ends at 0.1000.",
    ]
    rows.append(row("[/bold]", 0.1, None, None, None))  # as a folder may be called
    screen = io.StringIO()
    Console(width=80, file=screen).print(comparison(rows, "test_accuracy", SENT))
    shown = screen.getvalue()
    assert "…" not in shown
    assert "[/bold]" in shown
    assert "1000.0" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.slow
def test_the_demo_tells_its_story_in_80_columns(tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    make = ["make", "--file", str(REPOSITORY / "Makefile"), "--old-file", ".venv/.ready", f"BIN={programs}", "demo"]
    made = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    story = made.stdout.replace(str(programs), ".venv/bin")
    assert [line for line in story.splitlines() if len(line) > 80 and line.startswith((" ", "To", ".venv"))] == []
    assert "To reach 0.82, sparse_proxskip uploads the least" in story
    assert "fedavg keeps all weights and ends at" in story
    assert (tmp_path / "runs/demo/comparison.png").read_bytes().startswith(b"\x89PNG")
    runs = {name: RunFolder(tmp_path / "runs/demo" / name) for name in ("sparse_proxskip", "fediht", "fedavg")}
    assert {name: folder.density() for name, folder in runs.items()} == {
        "sparse_proxskip": 0.1,
        "fediht": 0.1,
        "fedavg": 1.0,
    }
    assert all(folder.is_finished for folder in runs.values())
