"""What a job is asked to do; travels from the launcher to its workers as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

MODELS = ("vgg", "resnet")  # of model.make_model()
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"  # Debian's dataset-fashion-mnist


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result of a job, machine apart."""

    workers: int
    per_host: int  # of them, in one network namespace
    link: str
    compressors: list[str]
    epochs: float
    seeds: list[int]
    batch: int  # examples per worker and step
    learning_rate: float  # at its highest
    data: str  # what the task's find_data() gave: a folder, or a name
    train_limit: int | None = None  # examples; None: all
    test_limit: int | None = None
    model: str = "vgg"  # one of MODELS
    evaluations: int = 5  # of the test score, in the course of a training
    timeout: float = 120  # seconds that a worker waits for the others
    task: str = "images"  # see tasks.py
    sparse_embedding: bool = False  # whether embeddings' gradients are sparse tensors

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Settings":
        return Settings(**json.loads(text))


@dataclass(frozen=True)
class Place:
    """Where one worker finds itself."""

    rank: int
    addresses: list[str]  # of all workers
    interface: str
    master_port: int
    own_counters: bool  # whether the interface carries this worker's traffic and nothing else
    threads: int  # for tensor operations
    events: int  # file descriptor on which rank 0 reports
    finished: list[tuple[int, str]]  # (seed, compressor) that an earlier job has trained

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Place":
        values = json.loads(text)
        values["finished"] = [tuple(pair) for pair in values["finished"]]
        return Place(**values)

    def bytes_sent(self) -> int | None:
        """What the interface has sent since it was made, headers included; None if shared."""
        if not self.own_counters:
            return None
        counter = Path("/sys/class/net", self.interface, "statistics/tx_bytes")
        return int(counter.read_text())
