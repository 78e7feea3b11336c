"""Random rotations of chunks (src/compressors/quantizers/rotation.h) in NumPy, by their definition."""

import numpy
from philox import random_words


def signs(seed, first, length):
    """+1 and -1 of the entries from `first` on, 2,048 at a time."""
    found = []
    for tile in range(first, first + length, 2048):
        words = random_words(64, (tile // 32, 0, 0, 0), (int(seed), 0x4544454E))
        found.append((words[:, None] >> numpy.arange(32, dtype=numpy.uint64) & numpy.uint64(1)).ravel())
    return 1.0 - 2.0 * numpy.concatenate(found)[:length].astype(numpy.float64)


def hadamard(values):
    """Of halves that are transformed, their sum and their difference."""
    half = 1
    while half < len(values):
        low, high = values.reshape(-1, 2, half).swapaxes(0, 1)
        values = numpy.stack([low + high, low - high], axis=1).ravel()
        half *= 2
    return values


def block_lengths(elements):
    while elements > 0:
        length = max(2 ** (elements.bit_length() - 1), 64)
        yield length
        elements -= length


def content(name, elements):
    values = numpy.random.default_rng(2).laplace(size=elements)
    if name == "outlier":
        values[elements // 2] = 1e6
    return (values * {"tiny": 1e-40, "huge": 1e36}.get(name, 1)).astype(numpy.float32)
