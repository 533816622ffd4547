"""For commands that come back when they are killed."""

from __future__ import annotations

import typer

from common.say import Say
from server.deploy.guard import Guard


def guarded(context: typer.Context, say: Say) -> Guard:
    """Go on in a process that is watched over, where the program has brought a guard; others are not to be forked."""
    guard: Guard | None = context.obj
    if guard is None:
        return Guard()
    guard.stand(say)
    return guard
