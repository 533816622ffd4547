"""What a model makes of examples."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from common.learning.blueprint import Predictor
from common.learning.examples import Examples, r_squared

AT_ONCE = 500  # examples


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """A prediction for each example."""

    examples: Examples
    classes: tuple[str, ...]  # none where numbers are predicted
    outputs: NDArray[np.float64]  # numbers, or a probability of each class

    @classmethod
    def of(cls, predictor: Predictor, classes: tuple[str, ...], examples: Examples) -> Predictions:
        """Predict examples, some at a time."""
        predictor.eval()
        batches = zip(*(torch.split(one, AT_ONCE) for one in examples.inputs), strict=True)
        with torch.no_grad():
            outputs = torch.cat([predictor(*batch) for batch in batches])
        return cls(examples=examples, classes=classes, outputs=outputs.double().numpy())

    def metrics(self) -> dict[str, float]:
        """Return how good they are on the examples whose answers are known; nothing where none is."""
        known = ~np.isnan(self.examples.targets)
        outputs, targets = self.outputs[known], self.examples.targets[known]
        if not len(targets):
            return {}
        if self.classes:
            return {"accuracy": int((outputs.argmax(1) == targets).sum()) / len(targets)}
        error = {"squared_error": float(np.square(outputs - targets).mean())}
        return error if (targets == targets[0]).all() else {"r2": r_squared(outputs, targets), **error}

    def header(self) -> list[str]:
        """Return the names of what is in a row."""
        probability = ["probability"] if self.classes else []
        return ["example", "prediction", *probability, *(["target"] if self._has_targets else [])]

    def rows(self) -> Iterator[list[str]]:
        """Return each example with its prediction; of a class its probability too; the right answer where known."""
        for name, output, target in zip(self.examples.names, self.outputs, self.examples.targets, strict=True):
            yield [name, *self._in_words(output), *([self._answer(target)] if self._has_targets else [])]

    def to_csv(self) -> bytes:
        """Return all rows as a file, as many and in the order that the examples have."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header())
        writer.writerows(self.rows())
        return text.getvalue().encode()

    @property
    def _has_targets(self) -> bool:
        return not np.isnan(self.examples.targets).all()

    def _in_words(self, output: NDArray[np.float64]) -> list[str]:
        if not self.classes:
            return [f"{output:.9g}"]
        best = int(output.argmax())
        return [self.classes[best], f"{output[best]:.6f}"]

    def _answer(self, target: float) -> str:
        if np.isnan(target):
            return ""
        return self.classes[int(target)] if self.classes else f"{target:.9g}"
