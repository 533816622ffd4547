"""A deployed run, shown as it goes: what `run` and `local` share."""

from __future__ import annotations

from common.experiment import plugins
from common.learning.task import Problem
from common.rounds.algorithm import Algorithm
from common.say import Event
from server.commands.console import Terminal
from server.commands.which_run import OpenRun, how_to_go_on
from server.deploy.federation import Federation
from server.link.hub import Hub
from server.runs.progress import live_view
from server.runs.recorder import Recorder
from server.runs.summary import summary
from server.watch.report import write_report
from strategies.flower.terms import Terms


def run_deployed(run: OpenRun, problem: Problem, terms: Terms, hub: Hub, terminal: Terminal) -> None:
    """Run the experiment on the clients that join the hub, and say how it went, or how it can go on."""
    folder, experiment, say = run.folder, run.experiment, terminal.say
    title = plugins.name_of(Algorithm.plugin_package, type(experiment.algorithm))
    with live_view(terminal, title=title, rounds=experiment.rounds, metric=problem.metric) as view:
        recorder = Recorder(folder, experiment, run.entry, show=view.show, say=say)
        federation = Federation(experiment, problem, terms, recorder, run.entry)
        try:
            federation.run_on(hub)
        except (KeyboardInterrupt, SystemExit):
            run.say(Event(how_to_go_on(folder), kind="stopped"))
            raise
    write_report(folder.path, say)
    say(f"{problem.data_name}: {summary(folder.rounds(), problem.metric)}")
    say(f"results: {folder.path}")
