"""One training of one model with one compressor, and its measurements."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Callable

import torch
import torch.distributed as dist
from torch import nn

from bench.training import corrected_momentum, specs
from bench.training.data import Order
from bench.training.muon import MuonBeside
from bench.training.replica import Replica
from bench.training.settings import Place, Settings

_WARM_UP_SHARE = 0.2  # of the steps, in which the learning rate rises

Progress = Callable[[int, int, float], None]
"""Called with the steps done, the steps in all, and the last loss."""


@dataclass
class Course:
    """What one worker saw, step by step. Tests of the accuracy are outside of all times."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)  # by the interface's counter; else empty
    accuracies: list[tuple[int, float]] = field(default_factory=list)  # (steps done, the task's score)


class Trainer(ABC):
    """Holds a worker's data and trains on it, again and again. What differs between tasks is abstract."""

    quick_test_count: int  # examples for the score in the course of training; the last one uses all
    test_batch: int

    def __init__(self, settings: Settings, place: Place, train_count: int, test_count: int) -> None:
        """With the numbers of examples that there are."""
        self.settings, self.place = settings, place
        self.train_count = min(train_count, settings.train_limit or train_count)
        self.test_count = min(test_count, settings.test_limit or test_count)

    @abstractmethod
    def make_model(self, seed: int) -> nn.Module:
        """The same initial weights for every compressor at one seed."""

    @abstractmethod
    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer: ...

    def hidden_matrices(self, model: nn.Module) -> list[nn.Parameter]:
        """What Muon may train: neither embeddings nor what makes the output."""
        raise ValueError("muon= is for the language model alone")

    def optimizer_of(self, replica: Replica) -> torch.optim.Optimizer:
        """Of the replica's model, without momentum where its compressor has it."""
        parameters, muon = list(replica.model.parameters()), (specs.local_options(replica.spec) or {}).get("muon")
        if muon is not None:
            return MuonBeside(parameters, self.hidden_matrices(replica.module), muon, self.optimizer)
        optimizer = self.optimizer(parameters)
        if specs.corrects_momentum(replica.spec):
            corrected_momentum.take_from(optimizer)
        for group in optimizer.param_groups if specs.has_momentum(replica.spec) else ():
            group |= {"momentum": 0, "nesterov": False} if "momentum" in group else {}
        for group in optimizer.param_groups if specs.sharded_gathers(replica.spec) is not None else ():
            group |= {"fused": False, "foreach": True}  # shards are DTensors, which PyTorch has no fused optimizers for
        return optimizer

    @abstractmethod
    def loss(self, model: nn.Module, indices: torch.Tensor) -> torch.Tensor:
        """The mean over the training examples at `indices`."""

    @abstractmethod
    def test_sum(self, model: nn.Module, indices: torch.Tensor) -> float:
        """Of what the score is a mean of, over the test examples at `indices`."""

    def score(self, mean: float) -> float:
        """From the mean over all test examples."""
        return mean

    def order(self, seed: int) -> Order:
        return Order(self.train_count, self.settings.workers, self.settings.batch, seed)

    def replica(self, spec: str, seed: int) -> Replica:
        """A fresh model, kept together as `spec` says."""
        return Replica(self.make_model(seed), spec, seed=seed, timeout=self.settings.timeout)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, indices: torch.Tensor) -> float:
        """One step on the training examples at `indices`; returns this worker's loss."""
        optimizer.zero_grad()
        loss = self.loss(model, indices)
        loss.backward()
        optimizer.step()
        return loss.item()

    def train(self, seed: int, replica: Replica, progress: Progress) -> Course:
        """Trains the model in `replica`, made with the same seed, to the end."""
        order = self.order(seed)
        steps = order.steps(self.settings.epochs)
        if specs.warm_up_steps(replica.spec) >= steps:
            raise ValueError(f"{replica.spec!r}: the training has only {steps} steps; expected a warm-up of fewer")
        optimizer = self.optimizer_of(replica)
        replica.begin(optimizer)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: one_cycle(step, steps))
        tests = {round(steps * (part + 1) / self.settings.evaluations)
                 for part in range(self.settings.evaluations)}
        course = Course()
        self._begin_segment()
        for done, indices in enumerate(order.batches(self.place.rank, steps), start=1):
            begin = time.perf_counter()
            course.losses.append(self.step(replica.model, optimizer, indices))
            replica.after_step()
            schedule.step()
            course.seconds.append(time.perf_counter() - begin)
            if done in tests:
                dist.barrier()  # what waits at an interface for others is counted, too: nobody counts what goes while the model is tested
            self._count_bytes(course)
            progress(done, steps, course.losses[-1])
            if done in tests:
                with replica.tested():
                    accuracy = self.test(replica.module, quick=done < steps)
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
        """The score of `model`; each worker tests its share."""
        count = min(self.test_count, self.quick_test_count) if quick else self.test_count
        mine = torch.arange(self.place.rank, count, self.settings.workers)
        model.eval()
        sums = torch.tensor([sum(self.test_sum(model, part) for part in mine.split(self.test_batch)), len(mine)],
                            dtype=torch.float64)
        model.train()
        dist.all_reduce(sums)
        return self.score((sums[0] / sums[1]).item())


def one_cycle(step: int, steps: int, warm_up_share: float = _WARM_UP_SHARE) -> float:
    """The learning rate at `step` of `steps`, relative to its highest: up, then down to nearly 0,
    both in straight lines."""
    share = (step + 1) / (steps + 1)
    return min(share / warm_up_share, (1 - share) / (1 - warm_up_share))
