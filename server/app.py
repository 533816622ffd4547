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
from server.runs.recorder import Recorder
from server.runs.run_folder import RunFolder
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

    def show(record: RoundRecord) -> None:
        log.info("round %d of %d: %s", record.round, experiment.rounds, record.metrics)

    with RunFolder.reserved(Path(output) if output else None, experiment.name) as folder:
        folder.begin(experiment, problem.data_name)
        recorder = Recorder(folder, experiment, show=show, say=log.info)
        Federation(experiment, problem, Terms(), recorder).run(grid)
        write_report(folder.path, log.info)
    log.info("results: %s", folder.path.resolve())
