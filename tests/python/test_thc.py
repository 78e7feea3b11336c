"""thc against an independent implementation in NumPy, in double precision, and the errors of levels for a normal distribution."""

import numpy
import pytest
import thinwire
from philox import random_words, rounding_words
from rotations import block_lengths, content, hadamard, signs

COMMON = 0x7FFFFFFF  # where a worker's rank stands in its counter
# The best steps for a normal distribution, and what they lose: Max, 1960, table II.
EXACT_STEPS = {2: 1.224006361, 3: 0.6507696983, 4: 0.3534113103, 5: 0.193248525, 6: 0.1054875806, 7: 0.0572612772, 8: 0.0308700903}
STEPS = {2: 1.224, 3: 0.6508, 4: 0.3534, 5: 0.1932, 6: 0.1055, 7: 0.05726, 8: 0.03087}
ERRORS = {2: 0.190, 3: 0.0469, 4: 0.01289, 5: 0.00369, 6: 0.001069, 7: 0.000309, 8: 0.0000883}


def blocks_of(values):
    first = 0
    for length in block_lengths(len(values)):
        block = numpy.zeros(length)
        block[: len(values) - first] = values[first : first + length]
        yield first, block
        first += length


def mean_of(gradients, bits, feedback, seed):
    limit = 2 ** (bits - 1) - 1
    rotation = random_words(1, (0, 0, 0, COMMON), (seed, 0))[0]
    result = []
    for blocks in zip(*(blocks_of(gradient.astype(numpy.float64)) for gradient in gradients), strict=True):
        first, d = blocks[0][0], len(blocks[0][1])
        rotated = [hadamard(signs(rotation, first, d) * x) / numpy.sqrt(d) for _, x in blocks]
        if feedback == "on":
            step = EXACT_STEPS[bits] * max(numpy.linalg.norm(x) for _, x in blocks) / numpy.sqrt(d)
        else:
            step = max(abs(y).max() for y in rotated) / limit
        total = numpy.zeros(d)
        for rank, y in enumerate(rotated):
            words = rounding_words(first + d, (0, 0, 0, rank), (seed, 0))[first:] >> numpy.uint64(8)
            uniform = 0.5 if feedback == "on" else words / 2**24
            below = numpy.floor(y / step)
            total += numpy.clip(below + (uniform < y / step - below), -limit, limit)
        result.append(signs(rotation, first, d) * hadamard(total * step) / numpy.sqrt(d) / len(gradients))
    return numpy.concatenate(result)[: len(gradients[0])]


def lost_of_normal(step, levels):
    """What is lost of a normal distribution, by a sum over a grid of its quantiles."""
    x = numpy.linspace(-9, 9, 40_001)
    rounded = step * numpy.clip(numpy.round(x / step), -levels, levels)
    return numpy.average((x - rounded) ** 2, weights=numpy.exp(-x * x / 2))


def best_step(levels):
    """Golden section."""
    low, high = 1e-3, 2.0
    while high - low > 1e-9:
        third = (high - low) / 3
        if lost_of_normal(low + third, levels) < lost_of_normal(high - third, levels):
            high -= third
        else:
            low += third
    return low


@pytest.mark.parametrize("bits", EXACT_STEPS)
def test_steps_are_the_best_for_a_normal_distribution(bits):
    assert EXACT_STEPS[bits] == pytest.approx(STEPS[bits], abs=1e-4)
    assert EXACT_STEPS[bits] == pytest.approx(best_step(2 ** (bits - 1) - 1), rel=1e-3)


@pytest.mark.parametrize("name", ["laplace", "outlier", "tiny", "huge"])
@pytest.mark.parametrize("elements", [1, 64, 300, 4097, 32768])
@pytest.mark.parametrize("feedback", ["off", "on"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("workers", [1, 3])
def test_is_what_its_formula_says(workers, bits, feedback, elements, name):
    gradients = [content(name, elements) * numpy.float32(0.5) ** rank for rank in range(workers)]
    mean, figures = thinwire.exchange(gradients, f"thc:bits={bits},feedback={feedback}", seed=5)
    expected = mean_of(gradients, bits, feedback, 5)
    error = numpy.linalg.norm(mean.astype(numpy.float64) - expected) / numpy.linalg.norm(expected)
    # Of many entries one or two are so near to the middle of two levels that floats and doubles find different ones; levels span some
    # 4 deviations.
    of_ties = 2 * 4 / (2 ** (bits - 1) - 1) / numpy.sqrt(elements) if elements > 1000 else 0
    assert error < (0.01 if name == "tiny" else 1e-5) + of_ties
    lengths = list(block_lengths(elements))
    fields = 32 // int(2 * workers * (2 ** (bits - 1) - 1)).bit_length()
    assert figures["payload_bytes"] == 4 * len(lengths) + 4 * -(-sum(lengths) // fields) + 4 * (2 if feedback == "on" else 1)
    assert figures["rounds"] == 2


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("name", ["laplace", "outlier"])
def test_error_is_that_of_a_normal_distribution_or_less(name, bits):
    values = content(name, 32768)
    mean, _ = thinwire.exchange([values], f"thc:bits={bits}", seed=1)
    error = numpy.square((mean - values).astype(numpy.float64)).sum() / numpy.square(values.astype(numpy.float64)).sum()
    if name == "laplace":
        assert error == pytest.approx(ERRORS[bits], rel=0.1 if bits == 8 else 0.05)  # few entries are cut off then
    else:  # rotated entries of one magnitude lose half of a step at most
        assert error < (STEPS[bits] / 2) ** 2


@pytest.mark.parametrize("feedback", ["off", "on"])
def test_levels_of_workers_add_up(feedback):
    """The mean is the same whoever sends which part of it, where rounding does nothing: W equal workers round as one does, feedback=on."""
    values = content("laplace", 4096)
    alone, _ = thinwire.exchange([values], f"thc:bits=8,feedback={feedback}", seed=3)
    together, _ = thinwire.exchange([values] * 4, f"thc:bits=8,feedback={feedback}", seed=3)
    if feedback == "on":
        numpy.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
    else:  # of their own random numbers
        assert numpy.square(together - values).sum() == pytest.approx(numpy.square(alone - values).sum() / 4, rel=0.1)


def test_a_short_worker_keeps_what_is_below_half_of_a_step():
    long, short = content("laplace", 4096), content("laplace", 4096)[::-1] * numpy.float32(1e-3)
    mean, _ = thinwire.exchange([long, short], "thc:bits=4", seed=3)
    alone, _ = thinwire.exchange([long], "thc:bits=4", seed=3)
    numpy.testing.assert_allclose(2 * mean, alone, rtol=1e-5, atol=1e-5)
