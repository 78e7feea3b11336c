"""The network that is trained: VGG-like, its parameters in the fully connected layers as in VGG."""

from __future__ import annotations

import torch
from torch import nn


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True)]


def make_model(seed: int) -> nn.Sequential:
    """A fresh network for (batch, 1, 28, 28) images and 10 classes, 4.3 M parameters.

    The same weights for the same seed. BatchNorm and biases are there as in most networks: they
    are small, and compressors leave them alone.
    """
    torch.manual_seed(seed)
    return nn.Sequential(
        *_block(1, 16), nn.MaxPool2d(2),
        *_block(16, 32), *_block(32, 32), nn.MaxPool2d(2),
        *_block(32, 64), nn.Flatten(),
        nn.Linear(64 * 7 * 7, 1024), nn.ReLU(inplace=True),
        nn.Linear(1024, 1024), nn.ReLU(inplace=True),
        nn.Linear(1024, 10))


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
