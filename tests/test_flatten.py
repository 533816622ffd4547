import pytest
import torch
from torch import nn

from common.learning.trained_part import TrainedPart
from common.vectors.flatten import Layout


def module() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 2, bias=False), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 1))


def test_parameters_and_buffers_lie_apart() -> None:
    flat = TrainedPart(module(), torch.device("cpu"))
    assert len(flat.weights) == 8 + 4 + 3
    names = [name for name in flat.tensors(flat.state()) if name not in dict(module().named_parameters())]
    assert names == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert flat.buffers is not None
    assert len(flat.buffers) == 2 + 2  # the counter of steps is in neither vector


def test_round_trip_of_a_batch() -> None:
    layout = Layout.of([("matrix", torch.empty(2, 3)), ("scalar", torch.empty(())), ("vector", torch.empty(2))])
    batch = torch.arange(18.0).reshape(2, 9)
    tensors = layout.unflatten(batch)
    assert tensors["matrix"].shape == (2, 2, 3)
    assert tensors["scalar"].tolist() == [6.0, 15.0]
    assert torch.equal(layout.flatten(tensors), batch)


def test_a_vector_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="15 numbers, got 3"):
        Layout.of(module().named_parameters()).unflatten(torch.zeros(3))


def test_a_trained_part_computes_on_its_vector() -> None:
    flat = TrainedPart(module(), torch.device("cpu"))
    flat.weights.fill_(0.5)
    assert all(bool((parameter == 0.5).all()) for parameter in flat.module.parameters())
    flat.module(torch.ones(3, 1, 2, 2)).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in flat.module.parameters() if p.grad is not None])
    assert torch.equal(flat.gradient, expected)
    assert flat.gradient.abs().sum() > 0


def test_buffers_are_read_and_written() -> None:
    flat = TrainedPart(module(), torch.device("cpu"))
    flat.load_buffers(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    buffers = flat.read_buffers()
    assert buffers is not None
    assert buffers.tolist() == [1.0, 2.0, 3.0, 4.0]
    flat.module.eval()
    assert dict(flat.module.named_buffers())["1.running_var"].tolist() == [3.0, 4.0]
