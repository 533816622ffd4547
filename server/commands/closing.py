"""The last words of a run: what its model has learned, where it is, and what can be done with it."""

from __future__ import annotations

from common.say import Say
from server.model.tables import in_a_line
from server.runs.run_folder import RunFolder


def say_what_is_left(folder: RunFolder, say: Say) -> None:
    """Say what a finished run leaves to its owner."""
    model = folder.model()
    if model.coefficients:
        say(in_a_line(model.coefficients))
    say(f"results: {folder.path}")
    if model.blueprint:
        say(f"next: proxskip-server predict {folder.path} --data PATH, or export {folder.path} --to onnx")
