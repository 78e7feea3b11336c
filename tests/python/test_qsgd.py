"""qsgd against an independent implementation in NumPy, bit for bit, and the paper's bound on its variance."""

import numpy
import pytest
import thinwire
from philox import uniform

BUCKET = 512
LEVELS = {bits: 2 ** (bits - 1) - 1 for bits in range(2, 9)}


def round_randomly(values, steps, seed, rank, levels):
    x = values * (numpy.float32(1) / steps)
    below = numpy.floor(x)
    return numpy.clip(below + (uniform(len(values), seed, rank) < (x - below)), -levels, levels).astype(numpy.int64)


def norms_of(values, norm):
    buckets = [values[first : first + BUCKET] for first in range(0, len(values), BUCKET)]
    if norm == "max":
        return numpy.array([abs(bucket).max() for bucket in buckets], numpy.float32)
    return numpy.sqrt([numpy.square(bucket.astype(numpy.float64)).sum() for bucket in buckets]).astype(numpy.float32)


def over_entries(buckets, elements):
    return numpy.repeat(buckets, BUCKET)[:elements]


def gradients_of(workers, elements=1300):
    return [numpy.random.default_rng(rank).laplace(size=elements).astype(numpy.float32) for rank in range(workers)]


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("workers", [1, 3])
def test_codes_of_every_worker(norm, bits, workers):
    gradients, levels = gradients_of(workers), numpy.float32(LEVELS[bits])
    mean, figures = thinwire.exchange(gradients, f"qsgd:bits={bits},norm={norm},reduce=gather", seed=5)
    expected = numpy.zeros_like(gradients[0])
    for rank, gradient in enumerate(gradients):
        steps = over_entries(norms_of(gradient, norm) / levels, len(gradient))
        decoded = round_randomly(gradient, steps, 5, rank, levels).astype(numpy.float32) * (numpy.float32(1 / workers) * steps)
        expected += decoded
    numpy.testing.assert_array_equal(mean, expected)
    assert figures["payload_bytes"] == 12 + 1 + 4 * 3 + (1300 * bits + 7) // 8


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_levels_add_up_with_a_shared_norm(norm, bits, workers):
    gradients, levels = gradients_of(workers), numpy.float32(LEVELS[bits])
    mean, figures = thinwire.exchange(gradients, f"qsgd:bits={bits},norm={norm},reduce=sum", seed=5)
    steps = over_entries(numpy.max([norms_of(gradient, norm) for gradient in gradients], 0) / levels, 1300)
    total = sum(round_randomly(gradient, steps, 5, rank, levels) for rank, gradient in enumerate(gradients))
    numpy.testing.assert_array_equal(mean, total.astype(numpy.float32) * (numpy.float32(1 / workers) * steps))
    fields = 32 // int(2 * workers * LEVELS[bits]).bit_length()
    assert figures["payload_bytes"] == 4 * (3 + 1) + 4 * -(-1300 // fields)  # steps, and whether all is finite
    assert figures["rounds"] == 2


@pytest.mark.parametrize("reduce", ["gather", "sum"])
@pytest.mark.parametrize("norm, bound", [("l2", lambda s: min(BUCKET / s**2, BUCKET**0.5 / s)),
                                         ("max", lambda s: min(BUCKET / (4 * s**2), BUCKET**0.5 / s))])  # fmt: skip
@pytest.mark.parametrize("bits", [2, 3, 5, 8])
def test_the_variance_is_within_the_papers_bound(reduce, norm, bound, bits):
    gradients = gradients_of(1, 64 * BUCKET)
    errors = [thinwire.exchange(gradients, f"qsgd:bits={bits},norm={norm},reduce={reduce}", seed=seed)[1]["nmse_worker"]
              for seed in range(5)]  # fmt: skip
    assert numpy.mean(errors) <= bound(LEVELS[bits])
    # The expectation for these very values: the variance of a Bernoulli variable, times the step's square.
    steps = over_entries(norms_of(gradients[0], norm) / numpy.float32(LEVELS[bits]), 64 * BUCKET).astype(numpy.float64)
    fractions = (gradients[0] / steps) % 1
    expected = (steps**2 * fractions * (1 - fractions)).sum() / numpy.square(gradients[0].astype(numpy.float64)).sum()
    assert numpy.mean(errors) == pytest.approx(expected, rel=0.03)


def test_workers_and_steps_draw_different_numbers():
    gradient = gradients_of(1)[0]
    mean, _ = thinwire.exchange([gradient, gradient], "qsgd:bits=2")
    alone, _ = thinwire.exchange([gradient], "qsgd:bits=2")
    assert (mean != alone).any()


def test_a_bucket_of_another_length_is_refused():
    with pytest.raises(ValueError, match="bucket=100.*multiple of 64"):
        thinwire.exchange(gradients_of(1), "qsgd:bucket=100")
