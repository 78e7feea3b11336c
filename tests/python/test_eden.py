"""eden against an independent implementation in NumPy, in double precision, and the paper's errors."""

import numpy
import pytest
import thinwire
from philox import random_words
from rotations import block_lengths, content, hadamard, signs

CENTROIDS = {1: [0.7978845608], 2: [0.4527800398, 1.510417608], 3: [0.2450941790, 0.7560052812, 1.343909279, 2.151945705]}
# E|x' - x|^2 / |x|^2: Vargaftik et al., table 1, and of the least error, Max 1960.
UNBIASED = {1: 0.571, 2: 0.133, 3: 0.0358, 4: 0.0096}
LEAST = {1: 0.3634, 2: 0.1175, 3: 0.03455, 4: 0.0095}


def decoded(values, bits, feedback):
    seed = random_words(1, (0, 0, 0, 0), (5, 0))[0]
    levels = numpy.array([-c for c in reversed(CENTROIDS[bits])] + CENTROIDS[bits])
    result, first = [], 0
    for length in block_lengths(len(values)):
        x = numpy.zeros(length)
        x[: len(values) - first] = values[first : first + length]
        d = signs(seed, first, length)
        y = hadamard(d * x) / numpy.sqrt(length)
        sigma = numpy.sqrt(numpy.square(y).mean())
        c = levels[numpy.searchsorted((levels[1:] + levels[:-1]) / 2 * sigma, y)]
        scale = (c @ y) / (c @ c) if feedback == "on" else (y @ y) / (c @ y)
        result.append(d * hadamard(scale * c) / numpy.sqrt(length))
        first += length
    return numpy.concatenate(result)[: len(values)]


@pytest.mark.parametrize("name", ["laplace", "outlier", "tiny", "huge"])
@pytest.mark.parametrize("elements", [1, 64, 300, 4097, 32768])
@pytest.mark.parametrize("feedback", ["off", "on"])
@pytest.mark.parametrize("bits", [1, 2, 3])
def test_is_what_its_formula_says(bits, feedback, elements, name):
    values = content(name, elements)
    mean, figures = thinwire.exchange([values], f"eden:bits={bits},feedback={feedback}", seed=5)
    expected = decoded(values.astype(numpy.float64), bits, feedback)
    error = numpy.linalg.norm(mean - expected) / numpy.linalg.norm(expected)
    assert error < (0.01 if name == "tiny" else 1e-5)  # denormal scales have few digits
    lengths = list(block_lengths(elements))
    assert figures["payload_bytes"] == 12 + 1 + 4 + 4 * len(lengths) + sum(lengths) * bits // 8


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["laplace", "outlier"])
def test_error_is_the_papers_and_less_with_an_outlier(name, bits):
    values = content(name, 32768)
    for feedback, errors in (("off", UNBIASED), ("on", LEAST)):
        mean, _ = thinwire.exchange([values], f"eden:bits={bits},feedback={feedback}", seed=1)
        error = numpy.square((mean - values).astype(numpy.float64)).sum() / numpy.square(values.astype(numpy.float64)).sum()
        if name == "laplace":
            assert error == pytest.approx(errors[bits], rel=0.05)
        else:  # one outlier leaves rotated entries of one magnitude, which are not normal but lose less
            assert error < errors[bits]


def test_errors_of_equal_gradients_average_out():
    values = content("laplace", 32768)
    errors = []
    for workers in (1, 8):
        mean, _ = thinwire.exchange([values] * workers, "eden:bits=1", seed=1)
        errors.append(numpy.square(mean - values).sum())
    assert errors[1] == pytest.approx(errors[0] / 8, rel=0.1)
