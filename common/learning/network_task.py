"""How a network is trained: the options and the hooks of every task that has one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from common.learning.batches import Batch, InMemory, examples_in
from common.learning.task import Task
from common.learning.trained_part import Sparse
from common.ranges import Range

Outputs = Any  # what a module returns


@dataclass(frozen=True, kw_only=True)
class NetworkTask(Task):
    """A task whose model is a torch module, trained by mini-batches; override the hooks in which yours differs."""

    metric_names: ClassVar[tuple[str, ...]] = ("test_accuracy",)  # what `metrics` returns, the headline first

    batch_size: Annotated[int, Range(at_least=1, at_most=4096)] = 32  # examples of a local step
    micro_batch: Annotated[int, Range(at_least=0, at_most=4096)] = 0  # examples at once, for little memory; 0: all
    weight_decay: Annotated[float, Range(at_least=0)] = 0.0
    gradient_clip_norm: Annotated[float, Range(above=0)] = 50.0
    loss_samples: Annotated[int, Range(at_least=1, at_most=10_000)] = 256  # of each client, for train_loss
    loader_workers: Annotated[int, Range(at_least=0, at_most=16)] = 0  # processes that read examples ahead
    autocast: Literal["none", "bfloat16"] = "none"  # of forward and backward; weights and updates stay float32
    compile: bool = False  # the module, by torch.compile: minutes at first, faster steps then
    sparse: Sparse = "model"  # or the change from the first model, for fine-tuning

    def __post_init__(self) -> None:
        if self.micro_batch and self.batch_size % self.micro_batch:
            raise ValueError(f"micro_batch = {self.micro_batch} does not divide batch_size = {self.batch_size}")
        if not self.metric_names or "train_loss" in self.metric_names:
            raise ValueError("metric_names: name at least one, and none train_loss, which is measured anyway")

    @property
    def at_once(self) -> int:
        """Return how many examples go through the network together."""
        return self.micro_batch or self.batch_size

    @abstractmethod
    def module(self) -> nn.Module:
        """Return the network; only parameters that require a gradient are trained, and only they travel."""

    def transform(self, batch: Batch, generator: torch.Generator | None) -> Batch:
        """Change a batch on the device: at random, by the generator, in training; there is none in evaluation."""
        return batch

    def forward(self, module: nn.Module, batch: Batch) -> Outputs:
        """Give a batch to the module: the first of a tuple, all of a dict but the labels, or a tensor as it is."""
        if isinstance(batch, Tensor):
            return module(batch)
        if isinstance(batch, Mapping):
            outputs = module(**{name: value for name, value in batch.items() if name != "labels"})
            return getattr(outputs, "logits", outputs)
        return module(batch[0])

    def labels(self, batch: Batch) -> Tensor:
        """Return the right answers in a batch: the last of a tuple, or what a dict calls labels."""
        if isinstance(batch, Tensor):
            raise TypeError("a batch that is one tensor has no labels: override loss and metrics")
        return cast(Tensor, batch["labels"] if isinstance(batch, Mapping) else batch[-1])

    def loss(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Return the mean loss over the examples of a batch, one number."""
        return nn.functional.cross_entropy(outputs, self.labels(batch))

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        """Return sums over the examples of a batch, by `metric_names`; of a map, each counts by its right places."""
        labels = self.labels(batch)
        right = (outputs.argmax(1) == labels).reshape(len(labels), -1)
        return {self.metric_names[0]: right.mean(1, dtype=torch.float32).sum()}

    def examples_in(self, batch: Batch) -> int:
        """Return how many examples a batch has: as many as labels; without these, the length of its first tensor."""
        try:
            return len(self.labels(batch))
        except (KeyError, TypeError):
            return examples_in(batch)

    def collate(self, examples: list[Any]) -> Batch:
        """Make a batch of examples."""
        return default_collate(examples)

    def in_memory(self, examples: Sequence[Tensor], device: torch.device) -> InMemory:
        """Return the batches of examples that are rows of tensors."""
        return InMemory(examples, device, batch_size=self.batch_size, at_once=self.at_once)
