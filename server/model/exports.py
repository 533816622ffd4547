"""A model for other programs: bytes of a file in a format of theirs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Literal

import torch
from safetensors.torch import save
from torch import Tensor, nn

from common.learning.linear import unscaled
from server.model.finished import FinishedModel

Format = Literal["torch", "onnx", "sparse"]


def exported(model: FinishedModel, to: Format) -> bytes:
    """Return a model in one of the formats."""
    exports: dict[Format, Callable[[FinishedModel], bytes]] = {"torch": to_torch, "onnx": to_onnx, "sparse": to_sparse}
    return exports[to](model)


def to_torch(model: FinishedModel) -> bytes:
    """Return a state_dict for `torch.load(weights_only=True)`; a linear model's is that of an nn.Linear, unscaled."""
    tensors = model.tensors
    if model.blueprint and isinstance(module := model.predictor()[1].module, nn.Linear):
        tensors = {name: tensor.float() for name, tensor in unscaled(module).items()}
    file = io.BytesIO()
    torch.save(dict(tensors), file)
    return file.getvalue()


def to_onnx(model: FinishedModel) -> bytes:
    """Return an ONNX graph from raw inputs to predictions."""
    from server.model.onnx import onnx_bytes  # which only some have installed

    return onnx_bytes(*model.predictor(), model.metadata())


def to_sparse(model: FinishedModel) -> bytes:
    """Return a safetensors file in which a tensor NAME is NAME:places and NAME:values, where that is smaller."""
    shapes: dict[str, list[int]] = {}
    kept: dict[str, Tensor] = {}
    for name, tensor in model.tensors.items():
        flat = tensor.flatten()
        places = flat.nonzero().squeeze(1)
        small = places.to(torch.uint16 if flat.numel() <= 1 << 16 else torch.int32)
        values = flat[places]
        if small.nbytes + values.nbytes < flat.nbytes:
            shapes[name] = list(tensor.shape)
            kept |= {f"{name}:places": small, f"{name}:values": values}
        else:
            kept[name] = tensor.contiguous()
    return save(kept, {**model.metadata(), "shapes": json.dumps(shapes)})
