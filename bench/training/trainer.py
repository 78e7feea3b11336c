"""One training of one model with one compressor, and its measurements."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Callable

import torch
import torch.distributed as dist
from torch import nn

from bench.training import data, tasks
from bench.training.replica import Replica
from bench.training.model import make_model
from bench.training.settings import Place, Settings

_MOMENTUM, _WEIGHT_DECAY = 0.9, 5e-4
_WARM_UP_SHARE = 0.2  # of the steps, in which the learning rate rises
_QUICK_TEST_IMAGES = 2000  # for the accuracy in the course of training; the last one uses all
_TEST_BATCH = 250

Progress = Callable[[int, int, float], None]
"""Called with the steps done, the steps in all, and the last loss."""


@dataclass
class Course:
    """What one worker saw, step by step. Tests of the accuracy are outside of all times."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)  # by the interface's counter; else empty
    accuracies: list[tuple[int, float]] = field(default_factory=list)  # (steps done, the task's score)


class Trainer:
    """Holds a worker's data and trains on it, again and again."""

    def __init__(self, settings: Settings, place: Place) -> None:
        self.settings = settings
        self.place = place
        self.train_images = data.load("train", settings.data).first(settings.train_limit)
        self.test_images = data.load("t10k", settings.data).first(settings.test_limit)

    def order(self, seed: int) -> data.Order:
        return data.Order(len(self.train_images), self.settings.workers, self.settings.batch, seed)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), self.settings.learning_rate, _MOMENTUM,
                               weight_decay=_WEIGHT_DECAY, nesterov=True, fused=True)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer,
             indices: torch.Tensor) -> float:
        """One step on the training images at `indices`; returns this worker's loss."""
        optimizer.zero_grad()
        pixels, labels = self.train_images.batch(indices)
        loss = nn.functional.cross_entropy(model(pixels), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    def train(self, seed: int, replica: Replica, progress: Progress) -> Course:
        """Trains a model made by `make_model(seed)` and wrapped in `replica` to the end."""
        order = self.order(seed)
        steps = order.steps(self.settings.epochs)
        optimizer = self.optimizer(replica.ddp)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: one_cycle(step, steps))
        tests = {round(steps * (part + 1) / self.settings.evaluations)
                 for part in range(self.settings.evaluations)}
        course = Course()
        self._begin_segment()
        for done, indices in enumerate(order.batches(self.place.rank, steps), start=1):
            begin = time.perf_counter()
            course.losses.append(self.step(replica.ddp, optimizer, indices))
            schedule.step()
            course.seconds.append(time.perf_counter() - begin)
            self._count_bytes(course)
            progress(done, steps, course.losses[-1])
            if done in tests:
                accuracy = self.test(replica.ddp.module, quick=done < steps)
                course.accuracies.append((done, accuracy))
                self._begin_segment()
        return course

    def _begin_segment(self) -> None:
        dist.barrier()
        self._counted = self.place.bytes_sent()

    def _count_bytes(self, course: Course) -> None:
        now = self.place.bytes_sent()
        if now is not None:
            course.bytes_sent.append(now - self._counted)
            self._counted = now

    @torch.inference_mode()
    def test(self, model: nn.Module, quick: bool) -> float:
        """The share of test images that `model` recognises; each worker tests its share."""
        images = self.test_images.first(_QUICK_TEST_IMAGES if quick else None)
        mine = torch.arange(self.place.rank, len(images), self.settings.workers)
        model.eval()
        right = 0
        for pixels, labels in map(images.batch, mine.split(_TEST_BATCH)):
            right += (model(pixels).argmax(1) == labels).sum().item()
        model.train()
        counts = torch.tensor([right, len(mine)], dtype=torch.float64)
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()


def one_cycle(step: int, steps: int) -> float:
    """The learning rate at `step` of `steps`, relative to its highest: up, then down to nearly 0,
    both in straight lines."""
    share = (step + 1) / (steps + 1)
    return min(share / _WARM_UP_SHARE, (1 - share) / (1 - _WARM_UP_SHARE))


def make_task_model(settings: Settings, seed: int) -> nn.Module:
    """The same initial weights for every compressor at one seed."""
    if settings.task == tasks.LANGUAGE:
        from bench.training import language
        return language.make_model(settings, seed)
    return make_model(seed, settings.model)


def make_trainer(settings: Settings, place: Place) -> Trainer:
    if settings.task == tasks.LANGUAGE:
        from bench.training import language
        return language.LanguageTrainer(settings, place)
    return Trainer(settings, place)


def fresh_replica(settings: Settings, spec: str, seed: int) -> Replica:
    return Replica(make_task_model(settings, seed), spec, seed=seed, timeout=settings.timeout)
