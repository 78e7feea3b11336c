"""The image task: a convolutional network on Fashion-MNIST."""

from __future__ import annotations

import torch
from torch import nn

from bench.training import data
from bench.training.model import make_model
from bench.training.settings import Place, Settings
from bench.training.trainer import Trainer

_MOMENTUM, _WEIGHT_DECAY = 0.9, 5e-4


class TaskTrainer(Trainer):
    """Its score is the share of test images that are recognised."""

    quick_test_count, test_batch = 2000, 250

    def __init__(self, settings: Settings, place: Place) -> None:
        self.train_images, self.test_images = data.load("train", settings.data), data.load("t10k", settings.data)
        super().__init__(settings, place, len(self.train_images), len(self.test_images))

    def make_model(self, seed: int) -> nn.Module:
        return make_model(seed, self.settings.model)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.settings.learning_rate, _MOMENTUM,
                               weight_decay=_WEIGHT_DECAY, nesterov=True, fused=True)

    def loss(self, model: nn.Module, indices: torch.Tensor) -> torch.Tensor:
        pixels, labels = self.train_images.batch(indices)
        return nn.functional.cross_entropy(model(pixels), labels)

    def test_sum(self, model: nn.Module, indices: torch.Tensor) -> float:
        pixels, labels = self.test_images.batch(indices)
        return (model(pixels).argmax(1) == labels).sum().item()
