"""Models that runs leave behind."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from common.experiment.experiment import Experiment
from common.learning.data import DataFolder
from server.runs.recorder import Recorder
from server.runs.run_folder import RunFolder
from server.simulation.simulation import SIMULATION, Simulation

CPU = torch.device("cpu")


def linear_model(run: Path) -> Tensor:
    """Return the model of a linear task as the flat vector that was trained."""
    tensors = load_file(run / "model.safetensors")
    return torch.column_stack([tensors["weight"], tensors["bias"]]).flatten()


def finished_run(path: Path, experiment: Experiment, data: Path | None) -> RunFolder:
    """Simulate an experiment in this process, and keep it as the program does."""
    problem = experiment.load(DataFolder.choose(data), CPU)
    folder = RunFolder.create(path, experiment, problem.data_name)
    simulation = Simulation(experiment, problem, CPU)
    recorder = Recorder(folder, experiment, show=lambda _: None, say=lambda _: None, run=SIMULATION)
    for record in simulation.rounds():
        recorder.on_round(record, simulation.checkpoint, simulation.controls)
    recorder.finish(problem, simulation.kept())
    return folder
