"""The last words on a run: five lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from common.learning.task import OwnDataTask
from common.units import bytes_text, seconds_text
from server.model.finished import FinishedModel
from server.model.tables import in_a_line
from server.runs.about import About
from server.runs.course import Course
from server.runs.run_folder import REPORT


def closing_lines(about: About, course: Course, model: FinishedModel | None) -> list[str]:
    """Return what a run came to, what it took, and where to look next."""
    return [
        f"score   {score_text(course)}",
        f"rounds  {_rounds(course)}",
        f"sent    {_sent(course)}",
        *_left(about, model),
        "next    " + "\n        ".join(_next_steps(about, model)),
    ]


def _left(about: About, model: FinishedModel | None) -> Iterator[str]:
    """Return what the model is, and of a table what it has learned."""
    if model is not None:
        kept = round(model.density * about.weights)
        yield f"model   {kept:,} of {about.weights:,} weights (density {model.density:.3g}), in {about.folder}"
        if model.coefficients:
            yield f"learned {in_a_line(model.coefficients)}"


def _next_steps(about: About, model: FinishedModel | None) -> Iterator[str]:
    if (report := about.folder / REPORT).is_file():
        yield f"{report}, for a browser"
    yield shlex.join(["proxskip-server", "watch", str(about.folder.parent)])
    if model is not None and model.blueprint:
        new_data = ["--data", "PATH"] if isinstance(model.experiment.task, OwnDataTask) else []
        yield shlex.join(["proxskip-server", "predict", str(about.folder), *new_data])


def score_text(course: Course) -> str:
    """Return the last score and the best."""
    if course.best is None:
        return f"{course.metric} was not measured"
    best, when = course.best
    return f"{course.metric} {course.scores[-1]:.4f}, best {best:.4f} in round {when}"


def _rounds(course: Course) -> str:
    each = course.training_seconds / course.round if course.round else 0.0
    took = f"{seconds_text(course.training_seconds)} of training, {seconds_text(each)} per round"
    return f"{course.round} in {took}"


def _sent(course: Course) -> str:
    """Return what a client has sent and got: its models, and what really went over the wire."""
    sent = course.bytes
    if not sent.payload_up:
        bits = course.last.paper_bits_up if course.last else 0.0
        return f"{bytes_text(bits / 8)} per client in values alone; nothing was encoded"
    model = f"{bytes_text(sent.payload_up)} up, {bytes_text(sent.payload_down)} down per client"
    if not sent.wire_up:
        return model
    return f"{model} (on the wire {bytes_text(sent.wire_up)}, {bytes_text(sent.wire_down)})"
