"""What the job can train, and how its score is called and written."""

from __future__ import annotations

from dataclasses import dataclass

IMAGES, LANGUAGE = "images", "language-model"


@dataclass(frozen=True)
class Task:
    """`relative`: differences to plain are told as parts of plain's score, else in points of a hundred."""

    name: str
    score: str  # of the runs' "accuracies"
    scale: float
    unit: str
    relative: bool
    model: str
    data: str
    learning_rate: float
    batch: int
    epochs: float
    slow_epochs: float
    compressors: str

    def text(self, score: float) -> str:
        return f"{score * self.scale:.2f}{self.unit}"

    def difference(self, row: dict) -> float:
        """A summary row's score less plain's, in per cent or points."""
        return self._told(row, row["accuracy_difference"])

    def interval(self, row: dict) -> float:
        return self._told(row, row["accuracy_interval"])

    def _told(self, row: dict, value: float) -> float:
        plain = row["accuracy"] - row["accuracy_difference"]
        return 100 * value / (plain if self.relative else 1)


TASKS = {
    IMAGES: Task(IMAGES, "accuracy", 100, " %", False, "VGG-like network", "Fashion-MNIST", 0.05, 32, 0.5, 0.12,
                 "plain,bf16,powersgd,casq:bits=2,casq:bits=3"),
    LANGUAGE: Task(LANGUAGE, "perplexity", 1, "", True, "word-level LSTM", "real text", 0.05, 16, 0.25, 0.04,
                   "plain; coordinates+none; s2+none; s2:mode=exact/casq:bits=2+none; "
                   "s2:mode=exact/casq:bits=2+casq:bits=2"),
}


def task_of(record: dict) -> Task:
    """Of a run, or of a summary row."""
    return TASKS[record.get("task", IMAGES)]
