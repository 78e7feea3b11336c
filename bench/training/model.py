"""The networks that are trained: VGG-like, with its parameters in the fully connected layers as in VGG, and ResNet-like,
with all of them in convolutions."""

from __future__ import annotations

import torch
from torch import nn


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True)]


class _Residual(nn.Module):
    """Two convolutions beside a short cut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))
        same = stride == 1 and inputs == outputs
        self.short_cut = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.convolutions(x) + self.short_cut(x))


def make_model(seed: int, name: str = "vgg") -> nn.Sequential:
    """A fresh network for (batch, 1, 28, 28) images and 10 classes: "vgg", 4.3 M parameters, or "resnet", 2.8 M.

    The same weights for the same seed. BatchNorm and biases are there as in most networks: they
    are small, and compressors leave them alone.
    """
    torch.manual_seed(seed)
    return {"vgg": _vgg, "resnet": _resnet}[name]()


def _resnet() -> nn.Sequential:
    stages = [(32, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
    return nn.Sequential(
        *_block(1, 32), nn.MaxPool2d(2), *(_Residual(*stage) for stage in stages),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def _vgg() -> nn.Sequential:
    return nn.Sequential(
        *_block(1, 16), nn.MaxPool2d(2),
        *_block(16, 32), *_block(32, 32), nn.MaxPool2d(2),
        *_block(32, 64), nn.Flatten(),
        nn.Linear(64 * 7 * 7, 1024), nn.ReLU(inplace=True),
        nn.Linear(1024, 1024), nn.ReLU(inplace=True),
        nn.Linear(1024, 10))


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
