"""Where a command prints."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console

from common.say import Event


class Terminal(Console):
    """A console for lines, tables and the live view of a run."""

    def say(self, text: str) -> None:
        """Print a line as it is, whatever brackets a path may have; what has happened in a run with the time."""
        line = f"{datetime.now():%H:%M:%S}  {text}" if isinstance(text, Event) else text
        self.print(line, markup=False, highlight=False, soft_wrap=True)
