"""Quantizers to compare with, in NumPy: slow, plain, with every bit counted. Each returns what a gradient is decoded to and
the bits an entry that this takes."""

from __future__ import annotations

import functools
import math

import numpy as np

FLOAT_BITS = 32


def qsgd(values: np.ndarray, bits: int, random: np.random.Generator, bucket: int = 512) -> tuple[np.ndarray, float]:
    """QSGD (Alistarh et al. 2017) with fixed-length codes: a sign and 2^(bits-1) - 1 levels above zero, rounded at random, by
    the largest magnitude of each bucket."""
    levels = 2 ** (bits - 1) - 1
    padded = np.zeros(-(-len(values) // bucket) * bucket)
    padded[: len(values)] = values
    rows = padded.reshape(-1, bucket)
    norms = np.abs(rows).max(axis=1, keepdims=True)
    scaled = np.divide(np.abs(rows) * levels, norms, out=np.zeros_like(rows), where=norms > 0)
    rounded = np.floor(scaled + random.random(rows.shape))
    decoded = np.sign(rows) * rounded * norms / levels
    return decoded.ravel()[: len(values)], bits + FLOAT_BITS * len(rows) / len(values)


@functools.cache
def _gaussian_levels(bits: int) -> np.ndarray:
    """Lloyd-Max levels of the normal distribution."""
    grid = np.linspace(-8, 8, 400_001)
    density = np.exp(-(grid**2) / 2)
    levels = np.linspace(-2, 2, 2**bits) if bits > 1 else np.array([-0.8, 0.8])
    for _ in range(500):
        nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, grid)
        mass = np.bincount(nearest, density, len(levels))
        levels = np.bincount(nearest, density * grid, len(levels)) / mass
    return levels


def _hadamard(rows: np.ndarray) -> np.ndarray:
    """Each row by the orthonormal Walsh-Hadamard transform; as many columns as a power of two."""
    rows = rows.copy()
    width = 1
    while width < rows.shape[1]:
        pairs = rows.reshape(rows.shape[0], -1, 2, width)
        rows = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(rows.shape)
        width *= 2
    return rows / math.sqrt(rows.shape[1])


def rotation(
    values: np.ndarray, bits: int, random: np.random.Generator, unbiased: bool, block: int = 4096
) -> tuple[np.ndarray, float]:
    """As EDEN (Vargaftik et al. 2022): blocks are rotated at random, which makes their entries Gaussian, and rounded to a
    Gaussian's best levels. One scale a block: EDEN's unbiased one, or the one of least error."""
    padded = np.zeros(-(-len(values) // block) * block)
    padded[: len(values)] = values
    rows = padded.reshape(-1, block)
    signs = random.choice([-1.0, 1.0], size=rows.shape)
    rotated = _hadamard(rows * signs)
    norms = np.sqrt((rotated**2).mean(axis=1, keepdims=True))
    levels = _gaussian_levels(bits)
    normalised = np.divide(rotated, norms, out=np.zeros_like(rows), where=norms > 0)
    rounded = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, normalised)]
    product = (rotated * rounded).sum(axis=1, keepdims=True)
    if unbiased:
        energy = (rotated**2).sum(axis=1, keepdims=True)
        scale = np.divide(energy, product, out=np.zeros_like(energy), where=product > 0)
    else:
        scale = product / (rounded**2).sum(axis=1, keepdims=True)
    decoded = _hadamard(scale * rounded) * signs
    return decoded.ravel()[: len(values)], (bits * rows.size + FLOAT_BITS * len(rows)) / len(values)
