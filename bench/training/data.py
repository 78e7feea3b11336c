"""Fashion-MNIST from its IDX files, and the order in which workers see it."""

from __future__ import annotations

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bench.training.settings import FASHION_MNIST

_PIXEL_MEAN, _PIXEL_DEVIATION = 0.2860, 0.3530  # of the training images, scaled to 0..1
_IDX_UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> np.ndarray:
    """The array of unsigned bytes in an IDX file (gzipped or not); ValueError where it is not one.

    The format: two zero bytes, the element type, the number of dimensions, each dimension as a
    big-endian 32-bit integer, then the elements.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        content = file.read()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_UNSIGNED_BYTE:
        raise ValueError(f"{path}: not an IDX file of unsigned bytes")
    dimensions, start = content[3], 4 + 4 * content[3]
    if len(content) < start:
        raise ValueError(f"{path}: ends within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise ValueError(f"{path}: {len(content) - start} elements, its header says {shape}")
    elements = np.frombuffer(content, np.uint8, offset=start)
    return elements.reshape(shape).copy()  # torch wants it writable


@dataclass(frozen=True)
class Images:
    """`pixels`: uint8 (count, 28, 28); `labels`: int64 (count,)."""

    pixels: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> "Images":
        """The first `count` of them; all for None."""
        return Images(self.pixels[:count], self.labels[:count])

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels as float32 (batch, 1, 28, 28) of mean 0 and deviation 1, and labels."""
        scaled = (self.pixels[indices].float() / 255 - _PIXEL_MEAN) / _PIXEL_DEVIATION
        return scaled.unsqueeze(1), self.labels[indices]


def load(part: str, folder: Path | str = FASHION_MNIST) -> Images:
    """The 60,000 images of part "train" or the 10,000 of part "t10k"."""
    pixels = read_idx(Path(folder, f"{part}-images-idx3-ubyte.gz"))
    labels = read_idx(Path(folder, f"{part}-labels-idx1-ubyte.gz"))
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))


@dataclass(frozen=True)
class Order:
    """Which images worker `rank` sees at which step: one permutation per seed and epoch.

    It depends on nothing else, so that every compressor is given the same batches.
    """

    count: int  # training images
    workers: int
    batch: int  # images per worker and step
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return self.count // (self.workers * self.batch)

    def steps(self, epochs: float) -> int:
        """Steps in `epochs` passes over the images; at least one."""
        return max(1, round(epochs * self.steps_per_epoch))

    def batches(self, rank: int, steps: int):
        """Yields the image indices (int64 tensor of `batch`) of each of `steps` steps."""
        for step in range(steps):
            epoch, position = divmod(step, self.steps_per_epoch)
            if position == 0:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                permutation = torch.randperm(self.count, generator=generator)
            start = (position * self.workers + rank) * self.batch
            yield permutation[start:start + self.batch]
