"""Records the gradients that lie in examples/gradients, for `thinwire compare` and `thinwire inspect`.

    .venv/bin/python -m bench.sample_gradients [--steps 200] [--out examples/gradients]

Two networks are trained by one worker: a CNN on Fashion-MNIST (39,548 parameters) and an LSTM with its softmax on real text, whose embedding
is left out (41,728). The last eight steps' gradients are recorded: NAME.npy, float32 of shape (steps, 1, elements), and NAME.json, the layout.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench import text
from bench.gradient_error import training_gradients
from bench.training.language import Sequences
from thinwire.torch import GradientRecorder, read_recording

RECORDED = 8
_BATCH, _SEQUENCES, _WORDS = 64, 16, 256


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 22), nn.ReLU(), nn.Linear(22, 10),
    )  # fmt: skip


class SmallLanguageModel(nn.Module):
    """Predicts the next of the most frequent words; all others are one word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, 32)
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, _WORDS)

    def loss(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(words))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), following.flatten())


def cnn_steps(steps: int) -> Iterator[nn.Module]:
    """The network, with the gradients of each step."""
    network = small_cnn()
    for _ in training_gradients(0, steps, 1, _BATCH, network):
        yield network


def lstm_steps(steps: int) -> Iterator[nn.Module]:
    sequences = Sequences(torch.from_numpy(text.load().words.clip(max=_WORDS - 1)))
    model = SmallLanguageModel()
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimiser.zero_grad()
        model.loss(*sequences.batch(torch.randint(len(sequences), (_SEQUENCES,), generator=order))).backward()
        yield model
        optimiser.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of the training")
    parser.add_argument("--out", type=Path, default=Path("examples/gradients"), help="a folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, steps in (("cnn", cnn_steps), ("lstm", lstm_steps)):
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            recorder = None
            for step, model in enumerate(steps(arguments.steps)):
                if step < arguments.steps - RECORDED:
                    continue
                names = [key for key, _ in model.named_parameters() if "embedding" not in key]
                recorder = recorder or GradientRecorder(model, folder, RECORDED, names=names)
                recorder.record()
            gradients, layout = read_recording(folder)
        np.save(arguments.out / f"{name}.npy", gradients)
        (arguments.out / f"{name}.json").write_text(json.dumps(layout, indent=1) + "\n")
        print(f"{arguments.out / name}.npy: {gradients.shape}")


if __name__ == "__main__":
    main()
