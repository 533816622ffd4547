"""What the documentation points to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.pages import PAGES, REPOSITORY

LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
TEST = re.compile(r"`(test_\w+)::(test_\w+)`")
PATH = re.compile(r"`((?:bench|client|fuzz|common|docker|docs|server|strategies|tests)/[^` ]*)`")


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_on_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = [page.parent / link for link in LINK.findall(text)] + [REPOSITORY / path for path in PATH.findall(text)]
    assert [path for path in paths if not path.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    for file, test in TEST.findall(page.read_text(encoding="utf-8")):
        (found,) = (REPOSITORY / "tests").rglob(f"{file}.py")
        assert f"def {test}(" in found.read_text(encoding="utf-8")
