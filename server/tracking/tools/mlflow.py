"""MLflow: where $MLFLOW_TRACKING_URI says, else MLflow's own default, ./mlflow.db."""

from __future__ import annotations

import logging
from typing import ClassVar

from common.rounds.records import RoundRecord
from server.tracking.tracker import TrackedRun, Tracker, scalars, unix_seconds

TOOL = "mlflow"
LONGEST_VALUE = 500  # characters of a parameter that any MLflow takes
MOST_PARAMETERS = 100  # at once


class MLflow(Tracker):
    """A run of the MLflow experiment that has our experiment's name."""

    package: ClassVar[str] = "mlflow"

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.ERROR)  # they would write into the view of the run
        self._client = MlflowClient()
        known = run.saved_id(TOOL)
        if known is not None:
            self._run = known
            self._client.update_run(known, status="RUNNING")
            seconds = self._client.get_metric_history(known, "seconds")  # which every round has
            self.newest_round = max((one.step for one in seconds), default=0)
            return
        self._run = self._client.create_run(self._experiment(run), run_name=run.name).info.run_id
        run.save_id(TOOL, self._run)
        values = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in run.parameters().items()]
        for start in range(0, len(values), MOST_PARAMETERS):
            self._client.log_batch(self._run, params=values[start : start + MOST_PARAMETERS])

    def _experiment(self, run: TrackedRun) -> str:
        found = self._client.get_experiment_by_name(run.experiment.name)
        made: str = found.experiment_id if found else self._client.create_experiment(run.experiment.name)
        return made

    def log(self, record: RoundRecord) -> None:
        """Send the round's numbers at once."""
        from mlflow.entities import Metric

        milliseconds = int(1000 * unix_seconds(record))
        metrics = [Metric(name, value, milliseconds, record.round) for name, value in scalars(record).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, *, finished: bool) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")
