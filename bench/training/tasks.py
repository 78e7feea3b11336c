"""What the job can train, and how its score is called and written.

A task is an entry here and a module of this package with a class `TaskTrainer` (see trainer.py).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from bench import ratings, text
from bench.training.settings import FASHION_MNIST

IMAGES, LANGUAGE, RECOMMENDER = "images", "language-model", "recommender"


@dataclass(frozen=True)
class Task:
    """`find_data` gives the data that a name, or None, stands for, as it is put into the settings, or a ValueError that says
    what to install; `describe_data` says in words what that is. `relative`: differences to plain are told as parts of plain's
    score, else in points of a hundred."""

    name: str
    module: str  # of this package
    model: str
    find_data: Callable[[str | None], str]
    describe_data: Callable[[str], str]
    examples: int  # to train on, about
    embedding: bool  # whether some gradients are sparse by rows
    optimizer: str
    score: str  # of the runs' "accuracies"
    scale: float
    decimals: int
    unit: str
    relative: bool
    logarithmic: bool  # the score's axis in plots
    learning_rate: float
    batch: int
    epochs: float
    slow_epochs: float  # on slow links
    compressors: str

    def trainer(self) -> type:
        """The task's `TaskTrainer`; loads PyTorch."""
        return importlib.import_module(f"bench.training.{self.module}").TaskTrainer

    def text(self, score: float) -> str:
        return f"{score * self.scale:.{self.decimals}f}{self.unit}"

    def difference(self, row: dict) -> float:
        """A summary row's score less plain's, in per cent or points."""
        return self._told(row, row["accuracy_difference"])

    def interval(self, row: dict) -> float:
        return self._told(row, row["accuracy_interval"])

    def _told(self, row: dict, value: float) -> float:
        plain = row["accuracy"] - row["accuracy_difference"]
        return 100 * value / (plain if self.relative else 1)


def _fashion_mnist(folder: str | None) -> str:
    folder = folder or FASHION_MNIST
    if not Path(folder, "train-images-idx3-ubyte.gz").exists():
        raise ValueError(f"no Fashion-MNIST in {folder}: install Debian's "
                         "dataset-fashion-mnist (in non-free), or name a folder with --data")
    return folder


_SPARSE_COMPRESSORS = ("plain; coordinates+none; s2+none; s2:mode=exact/casq:bits=2+none; "
                       "s2:mode=exact/casq:bits=2+casq:bits=2")

TASKS = {task.name: task for task in (
    Task(IMAGES, "images", model="VGG-like network", find_data=_fashion_mnist, describe_data=lambda _: "Fashion-MNIST",
         examples=60_000, embedding=False, optimizer="SGD with momentum", score="accuracy", scale=100, decimals=2, unit=" %",
         relative=False, logarithmic=False, learning_rate=0.05, batch=32, epochs=0.5, slow_epochs=0.12,
         compressors="plain,bf16,powersgd,casq:bits=2,casq:bits=3"),
    Task(LANGUAGE, "language", model="word-level LSTM", find_data=text.find, describe_data=lambda name: f"real text ({name})",
         examples=20_000, embedding=True, optimizer="Adagrad", score="perplexity", scale=1, decimals=2, unit="",
         relative=True, logarithmic=True, learning_rate=0.05, batch=16, epochs=0.25, slow_epochs=0.04,
         compressors=_SPARSE_COMPRESSORS),
    Task(RECOMMENDER, "recommender", model="collaborative filter", find_data=ratings.find, describe_data=ratings.describe,
         examples=90_000, embedding=True, optimizer="Adagrad", score="RMSE", scale=1, decimals=4, unit="",
         relative=True, logarithmic=False, learning_rate=0.02, batch=256, epochs=2, slow_epochs=1,
         compressors=_SPARSE_COMPRESSORS),
)}


def task_of(record: dict) -> Task:
    """Of a run, or of a summary row."""
    return TASKS[record.get("task", IMAGES)]
