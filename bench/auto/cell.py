"""One cell of the grid: a worker that trains copies of a model in turns, one for each spec."""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from bench import text
from bench.training import data, specs
from bench.training.replica import Replica
from bench.training.settings import FASHION_MNIST

SIZES = {"0.1M": "images", "1M": "language-model", "4M": "images", "25M": "language-model"}
_SEARCHED = 50  # steps that auto has before any counts
_TURN = 5  # steps of a spec before another one's turn
_MEASURED, _FEW, _LONG_SECONDS = 40, 10, 10.0  # steps; where a plain one is as long as that
_SEQUENCE = 24  # words


def _images(size: str) -> nn.Module:
    widths, hidden = {"0.1M": ((8, 16, 16), 128), "4M": ((16, 32, 64), 1024)}[size]
    layers: list[nn.Module] = []
    for inputs, outputs, pools in zip((1, *widths), widths, (True, True, False)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), *([nn.MaxPool2d(2)] if pools else [])]
    layers += [nn.Flatten(), nn.Linear(49 * widths[-1], hidden), nn.ReLU()]
    if size == "4M":
        layers += [nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, 10))


class _Words(nn.Module):
    """A softmax over all words at once, so that all gradients but the embedding's are dense."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.softmax = nn.Linear(width, vocabulary)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.softmax(self.lstm(self.embedding(words))[0])


class Task:
    """A model's training, on batches of real data, others in every step and on every worker."""

    def __init__(self, size: str) -> None:
        self.size = size
        self._random = np.random.default_rng(dist.get_rank())
        if SIZES[size] == "images":
            self._images = data.load("train", FASHION_MNIST)
            return
        self._vocabulary, self._width = {"1M": (4000, 112), "25M": (20000, 512)}[size]
        self._words = torch.from_numpy(np.minimum(text.load().words, self._vocabulary - 1))

    def make_model(self) -> nn.Module:
        torch.manual_seed(0)
        return _images(self.size) if SIZES[self.size] == "images" else _Words(self._vocabulary, self._width)

    def loss(self, model: nn.Module) -> torch.Tensor:
        if SIZES[self.size] == "images":
            pixels, labels = self._images.batch(torch.from_numpy(self._random.integers(len(self._images), size=32)))
            return nn.functional.cross_entropy(model(pixels), labels)
        begins = torch.from_numpy(self._random.integers(len(self._words) - _SEQUENCE - 1, size=4))
        words = self._words[begins.unsqueeze(1) + torch.arange(_SEQUENCE + 1)]
        return nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


class Contender:
    """A copy of the model that travels by one spec."""

    def __init__(self, task: Task, spec: str) -> None:
        self.task, self.spec = task, spec
        self.replica = Replica(task.make_model(), spec.removesuffix(" again"), timeout=600, powersgd_first_step=2)
        self.optimizer = torch.optim.SGD(self.replica.model.parameters(), lr=0.02)
        self.seconds: list[float] = []

    def step(self) -> float:
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.task.loss(self.replica.model).backward()
        self.optimizer.step()
        return time.perf_counter() - begin

    def turn(self) -> None:
        """Its first step meets memory that the others have used, and does not count."""
        self.step()
        for _ in range(_TURN):
            self.seconds.append(_slowest(self.step()))


def _slowest(seconds: float) -> float:
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def _work(job: dict) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.set_num_threads(1)
    task = Task(job["size"])
    contenders = [Contender(task, spec) for spec in job["specs"]]
    plain_seconds = 0.0
    for contender in contenders:
        seconds = [contender.step() for _ in range(_SEARCHED if specs.is_auto(contender.spec) else 3)]
        if contender.spec == "plain":
            plain_seconds = _slowest(min(seconds))
    turns = (_FEW if plain_seconds > _LONG_SECONDS else _MEASURED) // _TURN
    for turn in range(turns):
        # Each begins once in a while.
        shift = turn % len(contenders)
        for contender in contenders[shift:] + contenders[:shift]:
            contender.turn()
    if dist.get_rank() == 0:
        model = contenders[0].replica.module
        result = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "steps": turns * _TURN,
            "seconds": {contender.spec: statistics.median(contender.seconds) for contender in contenders},
            "auto": {contender.spec: contender.replica.stats()["auto"] for contender in contenders if specs.is_auto(contender.spec)},
        }
        print(json.dumps(result), flush=True)
    dist.barrier()
    for contender in contenders:
        contender.replica.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
