"""Network architectures, made of torchvision's blocks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from common.learning.vision import torchvision

NetworkName = Literal["resnet18_small", "resnet18", "mobilenet_v3"]


class ResNet18(nn.Module):
    """ResNet18 (He et al., 2016) for small images: after a 3 x 3 stem without pooling; 64 is the original width."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        channels = [width, width, 2 * width, 4 * width, 8 * width]
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        pairs = zip(channels, channels[1:], (1, 2, 2, 2), strict=False)
        self.stages = nn.Sequential(*(_stage(inputs, outputs, stride) for inputs, outputs, stride in pairs))
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of every class."""
        # Channels last: a step of a narrow network takes three quarters of the time on a CPU.
        pixels = images.contiguous(memory_format=torch.channels_last)
        scores: Tensor = self.head(self.stages(self.stem(pixels)).mean((2, 3)))
        return scores


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    block = torchvision.models.resnet.BasicBlock
    shortcut = None
    if inputs != outputs:
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    return nn.Sequential(block(inputs, outputs, stride, shortcut), block(outputs, outputs))


def network_of(name: NetworkName, classes: int) -> nn.Module:
    """Return a network for classification by its name; without dropout, so that a round can be repeated."""
    models = torchvision.models
    network: nn.Module
    match name:
        case "resnet18_small":
            network = ResNet18(64, classes)
        case "resnet18":
            network = models.resnet18(num_classes=classes)
        case "mobilenet_v3":
            network = models.mobilenet_v3_small(num_classes=classes, dropout=0.0)
    return network
