"""The Flower ServerApp, for those who run a SuperLink of Flower: `flwr run .`, from the repository."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from common.messages.messages import unpack_run
from common.rounds.records import RoundRecord
from server.deploy.federation import Federation
from server.runs.about import About
from server.runs.course import Course
from server.runs.recorder import Recorder
from server.runs.run_folder import RunFolder
from server.runs.status import status_kept
from server.runs.summary import closing_lines
from server.watch.report import write_report
from strategies.flower.terms import Terms

app = ServerApp()
log = logging.getLogger("flwr")  # which a SuperLink shows


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run's configuration names."""
    experiment = unpack_run(context.run_config, context.run_id, allowed=None).experiment
    problem = experiment.load_for_server(None, torch.device("cpu"))
    output = str(context.run_config.get("output") or "")

    course = Course(problem.metric)

    def show(record: RoundRecord) -> None:
        course.add(record)
        log.info("round %d of %d: %s", record.round, experiment.rounds, record.metrics)

    with RunFolder.reserved(Path(output) if output else None, experiment.name) as folder:
        folder.begin(experiment, problem.data_name)
        recorder = Recorder(folder, experiment, show=show, say=log.info)
        federation = Federation(experiment, problem, Terms(), recorder, course)
        path, weights = folder.path.resolve(), federation.weights
        about = About.of(experiment, problem, how="deployed", weights=weights, folder=path, command="")
        with status_kept(about, federation.now):
            federation.run(grid)
        write_report(path, log.info)
    for line in closing_lines(about, course, recorder.model):
        log.info(line)
