"""What the documents say: their code blocks, commands and tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
PAGES = [REPOSITORY / "README.md", REPOSITORY / "SECURITY.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:\A|\n)\n((?: {4}.*\n)+)")
NOT_RUN = re.compile(r"(needs|takes) ")  # how a comment begins that says why nobody runs a command to test it
INLINE_COMMAND = re.compile(r"`((?:proxskip-(?:server|client)|make|python -m) [^`]+)`")


@dataclass(frozen=True)
class Command:
    """A line that a reader may type in."""

    page: str
    text: str
    comment: str

    @property
    def words(self) -> list[str]:
        """Return its words, as a shell would take them apart."""
        return shlex.split(self.text)

    @property
    def is_marked(self) -> bool:
        """Say whether the page says that it needs or takes more than a test has."""
        return NOT_RUN.match(self.comment) is not None

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def commands_of(page: Path) -> list[Command]:
    """Return the commands of a page: each line of a code block that is indented, or fenced as `sh`."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for language, block in FENCE.findall(text) if language == "sh"]
    blocks += [re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in INDENTED.findall(FENCE.sub("", text))]
    return [command for block in blocks for command in _commands_in(block, page.name)]


def _commands_in(block: str, page: str) -> Iterator[Command]:
    """Yield the commands of a block; a comment on a line of its own holds for all lines under it."""
    for_all = ""
    for line in block.replace("\\\n", " ").splitlines():
        text, _, comment = (part.strip() for part in f"{line} ".partition("# "))
        if text:
            yield Command(page, text, comment if NOT_RUN.match(comment) else for_all)
        elif comment:
            for_all = comment


def inline_commands_of(page: Path) -> list[Command]:
    """Return the commands that stand within a sentence or a table."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [Command(page.name, found, "") for found in INLINE_COMMAND.findall(text)]


def rows_of(page: Path, *header: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of each row of the tables with this header, beside the heading that the table stands under."""
    heading, inside = "", False
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if cells == list(header):
            inside = True
        elif inside and cells and not set("".join(cells)) <= set("-:"):
            yield heading, cells
        elif not cells:
            inside = False
