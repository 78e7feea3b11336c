"""The count sketches of kernels/rows.h in NumPy, in double precision, as docs/wire_format.md says them."""

import numpy


def mix(x):
    """SplitMix64's finaliser, of an array or a number."""
    x = numpy.atleast_1d(numpy.asarray(x, dtype=numpy.uint64))
    with numpy.errstate(over="ignore"):
        x = x + numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return x ^ (x >> numpy.uint64(31))


def permuted(seed, count):
    """Number by number, as the format says it."""
    bits = (count - 1).bit_length()
    keys = [int(mix(seed)[0])]
    for _ in range(3):
        keys.append(int(mix(keys[-1])[0]))
    result = []
    for number in range(count):
        x = number
        while True:
            for key in keys:
                x = (x * (key | 1) + (key >> 32)) % 2**bits
                x ^= x >> ((bits + 1) // 2)
            if x < count:
                break
        result.append(x)
    return numpy.array(result)


class Hashes:
    """Of one table and one chunk: each entry's cell and sign."""

    def __init__(self, seed, elements, cells):
        groups = -(-elements // 16)
        hashed = mix(numpy.arange(groups, dtype=numpy.uint64) ^ numpy.uint64(seed))
        lane = numpy.tile(numpy.arange(16), groups)[:elements]
        cell = numpy.repeat(permuted(seed, groups) % cells, 16)[:elements]
        self.place = 16 * cell + lane
        self.sign = 1.0 - 2.0 * ((numpy.repeat(hashed, 16)[:elements] >> lane.astype(numpy.uint64)) & numpy.uint64(1)).astype(float)
        self.floats = 16 * cells

    def sketch(self, values):
        return numpy.bincount(self.place, self.sign * values, self.floats)

    def estimates(self, sketch):
        return self.sign * sketch[self.place]
