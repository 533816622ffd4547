"""Where a command prints."""

from __future__ import annotations

from rich.console import Console


class Terminal(Console):
    """A console for lines, tables and the live view of a run."""

    def say(self, text: str) -> None:
        """Print a line as it is, whatever brackets a path may have."""
        self.print(text, markup=False, highlight=False, soft_wrap=True)
