"""The digest of the code that computes runs: it changes when the code does, and only then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from server.research.code_version import COMPUTING, ROOT, code_digest, computing_files

SOURCE = '''"""A module."""

def twice(x: int) -> int:
    """Return 2 x."""
    return 2 * x
'''
# What a run gives does not depend on these: they check, read and write.
BESIDE = (
    "common.errors",
    "common.say",
    "common.experiment",
    "common.ranges",
    "common.storage",
    "server.research",
    "server.runs",
)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """Return a file of a small product."""
    path = tmp_path / "strategies" / "twice.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("A module.", "A module with more words."),
        ('    """Return 2 x."""\n', ""),
        ("2 * x", "2 * x  # twice as much"),
        ("2 * x", "(2\n        * x)"),
    ],
)
def test_words_and_layout_are_no_other_code(module: Path, old: str, new: str) -> None:
    before = code_digest(module.parents[1])
    module.write_text(SOURCE.replace(old, new))
    assert code_digest(module.parents[1]) == before


@pytest.mark.parametrize(("old", "new"), [("2 * x", "3 * x"), ("2 * x", "x * 2"), ("twice", "double")])
def test_another_statement_is_other_code(module: Path, old: str, new: str) -> None:
    before = code_digest(module.parents[1])
    module.write_text(SOURCE.replace(old, new))
    assert code_digest(module.parents[1]) != before


def test_another_file_is_other_code_unless_it_does_not_compute(module: Path) -> None:
    root = module.parents[1]
    before = code_digest(root)
    (root / "strategies" / "flower").mkdir()
    (root / "strategies" / "flower" / "strategy.py").write_text(SOURCE)
    assert code_digest(root) == before
    (root / "strategies" / "thrice.py").write_text(SOURCE)
    assert code_digest(root) != before


@pytest.mark.parametrize("pattern", COMPUTING)
def test_every_pattern_finds_code(pattern: str) -> None:
    assert list(ROOT.glob(pattern))


def test_all_that_computes_a_run_is_in_the_digest() -> None:
    program = "import sys, server.research.outcome; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ours = {name for name in finished.stdout.split() if name.partition(".")[0] in ("common", "server", "strategies")}
    digested = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in computing_files()}
    packages = {name for name in ours if any(other.startswith(f"{name}.") for other in ours)}
    assert {name for name in ours - packages - digested if not name.startswith(BESIDE)} == set()
