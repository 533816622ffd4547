"""The command `proxskip-server predict`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from common.errors import UserError
from common.say import one_line
from server.commands import options
from server.commands.console import Terminal
from server.commands.new_file import refuse_existing
from server.runs.run_folder import RunFolder

if TYPE_CHECKING:  # it brings torch, which is slow to import
    from server.model.predictions import Predictions

SHOWN_ROWS = 10


def predict(run: options.RunPath, data: options.ToPredict = None, output: options.PredictionsFile = None) -> None:
    """Predict with the model of a finished run, and say how good that is where the right answers are known.

    For clients' own data, --data is a new table (CSV, Parquet, npz; it may lack the target's column), a folder of them,
    or a folder of images. For public data sets it is their folder, and their test set is predicted.
    """
    refuse_existing(output)

    from common.storage.replace import replace_file
    from server.model.predictions import Predictions
    from server.model.tables import coefficient_table

    terminal = Terminal()
    model = RunFolder(run).model()
    predictor, blueprint = model.predictor()
    experiment = model.experiment
    examples = experiment.task.examples(data, clients=experiment.clients, seed=experiment.seed)
    if examples is None:
        raise UserError(f"the task {model.task} does not say how to read examples (docs/models.md)")
    predictions = Predictions.of(predictor, blueprint.classes, examples)
    if model.coefficients:
        terminal.print(coefficient_table(model.coefficients))
    if output is None:
        _show(predictions, terminal)
    else:
        replace_file(output, predictions.to_csv())
    measured = ", ".join(f"{name} {value:.4f}" for name, value in predictions.metrics().items())
    count = len(examples.names)
    noun = "example" if count == 1 else "examples"
    terminal.say(f"{count} {noun}: {measured or 'no right answers to compare with'}")
    terminal.say(f"predictions: {output or '--output FILE keeps all of them'}")


def _show(predictions: Predictions, terminal: Terminal) -> None:
    """Show the first few."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*predictions.header())
    for row in islice(predictions.rows(), SHOWN_ROWS):
        table.add_row(*(Text(one_line(entry)) for entry in row))
    terminal.print(table)
