"""The Flower ServerApp, for those who run a SuperLink of Flower: `flwr run .`, from the repository."""

from __future__ import annotations

from logging import INFO
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from common.messages.messages import unpack_run
from common.rounds.records import RoundRecord
from server.deploy.federation import Federation
from server.runs.run_folder import RunFolder
from strategies.flower.terms import Terms

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run's configuration names."""
    experiment = unpack_run(context.run_config, context.run_id).experiment
    problem = experiment.load_for_server(None, torch.device("cpu"))
    output = str(context.run_config.get("output") or "")
    folder = RunFolder.create(Path(output) if output else None, experiment, problem.data_name)

    def show(record: RoundRecord) -> None:
        log(INFO, "round %d of %d: %s", record.round, experiment.rounds, record.metrics)

    Federation(experiment, problem, folder, Terms(), show=show, say=lambda text: log(INFO, text)).run(grid)
    log(INFO, "results: %s", folder.path.resolve())
