"""What the two programs have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable

from common.errors import UserError
from common.messages.flower import quiet_flower
from common.program.memory import keep_freed_memory


def run_program(app: Callable[[], object]) -> None:
    """Run a program; an error that the user can mend is one line and exit code 2."""
    quiet_flower()
    keep_freed_memory()
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
