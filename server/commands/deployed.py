"""A deployed run, shown as it goes: what `run` and `local` share."""

from __future__ import annotations

from common.learning.task import Problem
from server.commands.audience import Audience
from server.commands.which_run import OpenRun
from server.deploy.federation import Federation
from server.link.hub import Hub
from server.runs.about import About
from server.runs.course import Course
from server.runs.recorder import Recorder
from server.runs.summary import closing_lines
from server.watch.report import write_report
from strategies.flower.terms import Terms


def run_deployed(run: OpenRun, problem: Problem, terms: Terms, hub: Hub, audience: Audience) -> None:
    """Run the experiment on the clients that join the hub, and say how it went, or by which command it can go on."""
    folder, experiment, course = run.folder, run.experiment, Course(problem.metric)
    say, command = audience.terminal.say, audience.command
    recorder = Recorder(folder, experiment, run.entry, show=course.add, say=say)
    course.catch_up(folder.rounds(), folder.clients())
    federation = Federation(experiment, problem, terms, recorder, course, run.entry)
    weights = federation.weights
    about = About.of(experiment, problem, how="deployed", weights=weights, folder=folder.path, command=command)
    with audience.following(experiment, about, course, federation.now):
        federation.run_on(hub)
    write_report(folder.path, say)
    for line in closing_lines(about, course, recorder.model):
        say(line)
