"""Bits, errors and speed of the chunk coder of `casq:rate=` on real gradients.

    scripts/cmake_build.sh release rate_coder
    .venv/bin/python -m bench.rate_error [--seeds 3] [--runs 0] [--bits 0.1,0.25,0.5,1,2,3] [--keep FOLDER]

Records gradients of the CNN of `bench.gradient_error` (0.31 M parameters, Fashion-MNIST) and of the language task's LSTM
(1.65 M parameters without the embedding, real text) after 200 steps each, and runs `build/bench/rate_coder` on them:
one step for a whole gradient, no feedback, all bits counted. With --runs it times encoding and decoding too. --keep leaves
the recordings there.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bench import text
from bench.gradient_error import layout_of, record_gradients
from bench.training.language import Sequences, WordModel

PROGRAM = Path("build/bench/rate_coder")
STEPS = 200
_SEQUENCES, _LEARNING_RATE = 16, 0.05  # the language task's own


def language_gradients(seed: int, steps: int, workers: int) -> tuple[Iterator[list[np.ndarray]], list[dict]]:
    """Each worker's flat gradient of every step of data-parallel training, without the embedding's; and its layout."""
    corpus = text.load()
    sequences = Sequences(torch.from_numpy(corpus.words))
    torch.manual_seed(seed)
    model = WordModel(corpus.vocabulary, sparse=False)
    dense = {name.replace(".", "_"): p for name, p in model.named_parameters() if "embedding" not in name}

    def gradients() -> Iterator[list[np.ndarray]]:
        optimiser = torch.optim.Adagrad(model.parameters(), _LEARNING_RATE)
        order = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            optimiser.zero_grad()
            of_workers: list[np.ndarray] = []
            before = np.float32(0)
            for _ in range(workers):  # gradients add up in the model, to what its optimiser takes
                model(*sequences.batch(torch.randint(len(sequences), (_SEQUENCES,), generator=order))).backward()
                so_far = torch.cat([p.grad.flatten() for p in dense.values()]).numpy()
                of_workers.append(so_far - before)
                before = so_far
            yield of_workers
            for parameter in model.parameters():
                parameter.grad /= workers
            optimiser.step()

    return gradients(), layout_of(torch.nn.ParameterDict(dense))


def language_gradient(seed: int, steps: int = STEPS) -> np.ndarray:
    """One worker's gradient after so many steps of training alone."""
    *_, (gradient,) = language_gradients(seed, steps + 1, 1)[0]
    return gradient


def recordings(folder: Path, seeds: int) -> Iterator[Path]:
    for name, record in (("cnn", lambda seed: record_gradients(seed, STEPS, 1, 32)[0][0]), ("lstm", language_gradient)):
        for seed in range(seeds):
            path = folder / f"{name}_{seed}.npy"
            if not path.exists():
                np.save(path, record(seed))
            yield path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="independent trainings of each network")
    parser.add_argument("--runs", type=int, default=0, help="timed runs, of which the median is printed")
    parser.add_argument("--bits", default="0.1,0.25,0.5,1,2,3", help="bits an entry, comma-separated")
    parser.add_argument("--keep", type=Path, help="a folder for recordings; those that lie there are used again")
    arguments = parser.parse_args()
    if not PROGRAM.exists():
        parser.error(f"{PROGRAM} is not there: build it by scripts/cmake_build.sh release rate_coder")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        files = list(recordings(folder, arguments.seeds))
        subprocess.run([PROGRAM, "--runs", str(arguments.runs), "--bits", arguments.bits, *files], check=True)


if __name__ == "__main__":
    main()
