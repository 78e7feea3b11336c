"""Philox 4x32 (Salmon et al., SC 2011) in NumPy, by its definition."""

import numpy


def philox(counters, key, rounds):
    """Philox 4x32 of counters (n, 4)."""
    c = [counters[:, word].astype(numpy.uint64) for word in range(4)]
    low = numpy.uint64(0xFFFFFFFF)
    for round_ in range(rounds):
        even, odd = c[0] * numpy.uint64(0xD2511F53), c[2] * numpy.uint64(0xCD9E8D57)
        keys = [(key[0] + round_ * 0x9E3779B9) & 0xFFFFFFFF, (key[1] + round_ * 0xBB67AE85) & 0xFFFFFFFF]
        c = [odd >> numpy.uint64(32) ^ c[1] ^ numpy.uint64(keys[0]), odd & low,
             even >> numpy.uint64(32) ^ c[3] ^ numpy.uint64(keys[1]), even & low]  # fmt: skip
    return numpy.stack(c, 1)


def random_words(count, counter, key, rounds=10):
    """What kernels::random_words makes: blocks of counters one after another, in groups of 64 words."""
    i = numpy.arange(count)
    blocks = numpy.repeat(numpy.array([counter], dtype=numpy.int64), count, 0)
    blocks[:, 0] += i // 64 * 16 + i % 16
    return philox(blocks, key, rounds)[i, i % 64 // 16]


def rounding_words(count, counter, key):
    """What kernels::rounding_words makes, in seven rounds: of every 16 words, those, and then the same turned by 16 bits."""
    groups = random_words(-(-count // 32) * 16, counter, key, rounds=7).reshape(-1, 1, 16)
    turned = (groups << numpy.uint64(16) | groups >> numpy.uint64(16)) & numpy.uint64(0xFFFFFFFF)
    return numpy.concatenate([groups, turned], 1).ravel()[:count]


def uniform(elements, seed, rank):
    """What a worker draws for the elements of parameter 0 in step 0, up to a chunk: the upper 24 bits, as numbers from 0 to 1."""
    return (rounding_words(elements, (0, 0, 0, rank), (seed, 0)) >> numpy.uint64(8)) / 2.0**24
