"""signsgd against an independent count of votes in NumPy."""

import numpy
import pytest
import thinwire
from philox import random_words

ELEMENTS = 4099
COMMON = 0x7FFFFFFF  # where a worker's rank stands in its counter


def coins(seed, rank):
    words = random_words(-(-ELEMENTS // 32), (0, 0, 0, rank), (seed, 0))
    bits = words[:, None] >> numpy.arange(32, dtype=numpy.uint64) & numpy.uint64(1)
    return 2.0 * bits.ravel()[:ELEMENTS] - 1


def signs(values, drawn):
    return numpy.where(values == 0, drawn, numpy.sign(values))


def vote(gradients, seed):
    votes = [signs(g, coins(seed, rank)) if g.any() else numpy.zeros(ELEMENTS) for rank, g in enumerate(gradients)]
    total = numpy.sum(votes, 0)
    return signs(total, coins(seed, COMMON)) if numpy.any(votes) else total


def content(name, workers):
    random = numpy.random.default_rng(4)
    gradients = random.normal(size=(workers, ELEMENTS))
    if name == "sparse":
        gradients *= random.random((workers, ELEMENTS)) < 0.3
    if name == "some zero":
        gradients[: workers // 2] = 0
    if name == "zeros":
        gradients[:] = 0
    return list((gradients * {"tiny": 1e-41, "huge": 1e37}.get(name, 1)).astype(numpy.float32))


@pytest.mark.parametrize("reduce", ["gather", "scatter"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["normal", "sparse", "some zero", "zeros", "tiny", "huge"])
def test_is_the_vote(name, workers, reduce):
    gradients = content(name, workers)
    found, figures = thinwire.exchange(gradients, f"signsgd:scale=0.25,reduce={reduce}", seed=5)
    numpy.testing.assert_array_equal(found, 0.25 * vote(gradients, 5))
    if reduce == "gather":
        assert figures["payload_bytes"] == 12 + 1 + 1 + -(-ELEMENTS // 8)


def test_ties_and_zeros_have_no_side():
    opposite = content("normal", 1) * 2
    opposite[1] = -opposite[1]
    tied, _ = thinwire.exchange(opposite, "signsgd", seed=5)
    zeros = numpy.zeros(ELEMENTS, numpy.float32)
    zeros[0] = 1
    of_zeros, _ = thinwire.exchange([zeros], "signsgd", seed=5)
    for drawn in (tied, of_zeros):
        assert abs(drawn.mean()) < 5 / numpy.sqrt(ELEMENTS)
