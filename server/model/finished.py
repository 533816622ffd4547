"""The model that a run ends with, as its folder keeps it: named tensors, and what there is to say of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from common.errors import UserError
from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.learning.blueprint import Blueprint, Predictor
from common.learning.task import Problem, Task
from common.messages.flower import APP_VERSION
from common.randomness import initialized
from common.rounds.algorithm import Algorithm
from common.rounds.records import RoundRecord
from common.rounds.state import ServerState
from common.storage.durable import read_durable
from server.model.coefficients import Coefficients


@dataclass(frozen=True, kw_only=True)
class FinishedModel:
    """A model, the run that it comes from, and what it is worth."""

    experiment: Experiment
    tensors: dict[str, Tensor]
    density: float  # of what is trained: buffers are never pruned
    data_name: str
    metric: str
    score: float | None  # of the last round, by that metric; None where nobody has held out anything

    @classmethod
    def of(
        cls, experiment: Experiment, problem: Problem, state: ServerState, last: RoundRecord | None
    ) -> FinishedModel:
        """Return what a run has come to."""
        return cls(
            experiment=experiment,
            tensors=problem.tensors(state),
            density=int(state.model.count_nonzero()) / state.model.numel(),
            data_name=problem.data_name,
            metric=problem.metric,
            score=last.metrics.get(problem.metric) if last else None,
        )

    @classmethod
    def read(cls, file: Path, experiment: Experiment) -> FinishedModel:
        """Return the model in the file of a run."""
        saved = read_durable(file, "a finished model")
        if saved is None:
            raise UserError(f"{file} is not there")
        tensors, metadata = saved
        try:
            return cls(
                experiment=experiment,
                tensors=tensors,
                density=float(metadata["density"]),
                data_name=metadata["data"],
                metric=metadata["metric"],
                score=float(metadata["score"]) if "score" in metadata else None,
            )
        except (KeyError, ValueError):
            raise UserError(
                f"{file} does not say what it is: another version or program wrote it; run its experiment again"
            ) from None

    def predictor(self) -> tuple[Predictor, Blueprint]:
        """Return the model with its numbers, from raw inputs to predictions, and what it is."""
        if self.blueprint is None:
            raise UserError(f"the task {self.task} does not say how to predict: it has no blueprint (docs/models.md)")
        try:
            found = self.blueprint.module.load_state_dict(self.tensors, strict=False)
        except (RuntimeError, TypeError) as error:
            raise UserError(f"the tensors are not those of the task {self.task}: {error}") from None
        frozen = {name for name, one in self.blueprint.module.state_dict(keep_vars=True).items() if _is_frozen(one)}
        if strange := [*found.unexpected_keys, *(name for name in found.missing_keys if name not in frozen)]:
            raise UserError(f"the tensors are not those of the task {self.task}: see {', '.join(sorted(strange))}")
        return Predictor(self.blueprint).eval(), self.blueprint

    @cached_property
    def blueprint(self) -> Blueprint | None:
        """Return what the model is, where the task says so; what is frozen in it is as it was in training."""
        return initialized(self.experiment.task.blueprint, self.experiment.seed)

    @cached_property
    def coefficients(self) -> Coefficients | None:
        """Return what a linear model has learned of named columns."""
        return Coefficients.of(self.blueprint, self.tensors) if self.blueprint else None

    @property
    def task(self) -> str:
        """Return the name of the task."""
        return plugins.name_of(Task.plugin_package, type(self.experiment.task))

    @property
    def algorithm(self) -> str:
        """Return the name of the algorithm."""
        return plugins.name_of(Algorithm.plugin_package, type(self.experiment.algorithm))

    def metadata(self) -> dict[str, str]:
        """Return what is written into the file beside the tensors; lists are JSON."""
        known = {
            "format": "pt",  # as other readers of such files expect it
            "version": APP_VERSION,
            "experiment": self.experiment.to_yaml(),
            "task": self.task,
            "algorithm": self.algorithm,
            "data": self.data_name,
            "metric": self.metric,
            "score": "" if self.score is None else repr(self.score),
            "density": repr(self.density),
        }
        if self.blueprint:
            known["scaling"] = self.blueprint.scaling
            known["columns"] = json.dumps(self.blueprint.features) if self.blueprint.features else ""
            known["classes"] = json.dumps(self.blueprint.classes) if self.blueprint.classes else ""
        if self.coefficients:
            known["coefficients"] = self.coefficients.to_json()
        return {name: text for name, text in known.items() if text}


def _is_frozen(tensor: Tensor) -> bool:
    """Say whether a tensor of a module is as the module makes it: no parameter to train, and no numbers to average."""
    return not tensor.requires_grad if isinstance(tensor, nn.Parameter) else not tensor.is_floating_point()
