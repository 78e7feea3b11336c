"""atomo against its formulas in NumPy, in double precision: which atoms are drawn, by what they are divided, variance, bytes."""

import numpy
import pytest
import thinwire
import thinwire.torch
from philox import random_words
from small_models import Given, ddp
from worker_pool import pool

ROUNDING = 2e-3  # of the largest entry: vectors come from squares in float32, so that those of a thousandth mix, and sum up to more


def matrix(m, n, decay, seed=3):
    """Singular values fall by the factor `decay`."""
    random = numpy.random.default_rng(seed)
    k = min(m, n)
    left, right = (numpy.linalg.qr(random.normal(size=(side, k)))[0] for side in (m, n))
    return (left * decay ** numpy.arange(k) @ right.T).astype(numpy.float32)


def probabilities(lengths, wanted):
    """Of falling lengths, by bisection of their common factor: the paper's are greedy."""
    low, high = 0.0, wanted / lengths[lengths > 0].min()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if numpy.minimum(1, middle * lengths).sum() < wanted else (low, middle)
    return numpy.minimum(1, high * lengths)


def expected(values, wanted, seed, rank=0, shrinks=False):
    left, lengths, right = numpy.linalg.svd(values.astype(numpy.float64), full_matrices=False)
    p = probabilities(lengths, wanted)
    random = int(random_words(1, (0, 0, 0, rank), (seed, 0))[0]) / 2**32
    ends = numpy.cumsum(p)
    drawn = [int(numpy.argmax(ends > random + j)) for j in range(wanted)]
    energy, variance = (lengths**2).sum(), (lengths**2 * (1 / p - 1)).sum()
    factor = energy / (energy + variance) if shrinks else 1
    return factor * (left[:, drawn] * lengths[drawn] / p[drawn]) @ right[drawn], variance


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (30, 5, 3, 3)])
@pytest.mark.parametrize("decay", [0.95, 0.7, 0.4])
@pytest.mark.parametrize("wanted", [1, 3, 5])
def test_atoms_are_drawn_as_published(shape, decay, wanted):
    values = matrix(shape[0], int(numpy.prod(shape[1:])), decay).reshape(shape)
    for seed in range(10):
        found, figures = thinwire.exchange([values], f"atomo:rank={wanted}", seed=seed)
        reference, _ = expected(values.reshape(shape[0], -1), wanted, seed)
        numpy.testing.assert_allclose(found.reshape(shape[0], -1), reference, rtol=0, atol=ROUNDING * abs(reference).max())
        assert figures["payload_bytes"] == 12 + 1 + 4 * wanted * (shape[0] + values.size // shape[0])


def test_every_worker_draws_for_itself():
    gradients = [matrix(40, 60, 0.8, seed) for seed in range(3)]
    found, _ = thinwire.exchange(gradients, "atomo:rank=2", seed=4)
    reference = sum(expected(values, 2, 4, rank)[0] for rank, values in enumerate(gradients)) / 3
    numpy.testing.assert_allclose(found, reference, rtol=0, atol=ROUNDING * abs(reference).max())


@pytest.mark.parametrize("feedback", ["off", "on"])
def test_the_error_is_the_variance(feedback):
    values = matrix(50, 70, 0.9)
    _, variance = expected(values, 3, 0)
    energy = (values.astype(numpy.float64) ** 2).sum()
    errors = [((thinwire.exchange([values], f"atomo:rank=3,feedback={feedback}", seed=seed)[0] - values.astype(numpy.float64)) ** 2).sum()
              for seed in range(400)]  # fmt: skip
    wanted = variance if feedback == "off" else energy * variance / (energy + variance)
    numpy.testing.assert_allclose(numpy.mean(errors), wanted, rtol=0.1)


def test_with_feedback_it_is_shrunk():
    values = matrix(40, 60, 0.9)
    found, _ = thinwire.exchange([values], "atomo:rank=2,feedback=on", seed=1)
    reference, _ = expected(values, 2, 1, shrinks=True)
    numpy.testing.assert_allclose(found, reference, rtol=0, atol=ROUNDING * abs(reference).max())


def test_what_has_few_atoms_is_exact():
    values = matrix(60, 40, 0.5)
    left, lengths, right = numpy.linalg.svd(values)
    values = (left[:, :2] * lengths[:2] @ right[:2]).astype(numpy.float32)
    for seed in range(20):
        found, _ = thinwire.exchange([values], "atomo:rank=3", seed=seed)
        numpy.testing.assert_allclose(found, values, rtol=0, atol=1e-5)


def test_a_large_matrix_is_cut_into_rows():
    """512 and 88 rows, each with atoms of their own."""
    values = numpy.random.default_rng(1).normal(size=(600, 700)).astype(numpy.float32)
    found, figures = thinwire.exchange([values], "atomo:rank=2")
    assert figures["payload_bytes"] == 12 + 1 + 4 * 2 * (512 + 88 + 2 * 700)
    for part in (found[:512], found[512:]):
        lengths = numpy.linalg.svd(part, compute_uv=False)
        assert lengths[1] > 1 and (lengths[2:] < 1e-4 * lengths[0]).all()
    tall, figures = thinwire.exchange([numpy.ones((3000, 20), dtype=numpy.float32)], "atomo:rank=1")
    assert figures["payload_bytes"] == 12 + 1 + 4 * (3000 + 20)
    numpy.testing.assert_allclose(tall, 1, rtol=1e-5)


@pytest.mark.parametrize("shape", [(500,), (4, 5), (1, 900)])
def test_what_would_not_become_half_as_long_travels_as_it_is(shape):
    values = numpy.random.default_rng(2).normal(size=shape).astype(numpy.float32)
    found, figures = thinwire.exchange([values], "atomo:rank=2")
    numpy.testing.assert_array_equal(found, values)
    assert figures["payload_bytes"] == 12 + 1 + 4 * values.size


def check_feedback(steps):
    gradients = numpy.random.default_rng(8).normal(size=(60, 50)).astype(numpy.float32)
    model = ddp(Given({"matrix": (60, 50)}))
    total = numpy.zeros((60, 50))
    with thinwire.torch.attach(model, "atomo:rank=2,feedback=on"):
        for _ in range(steps):
            model.zero_grad()
            model({"matrix": gradients}).backward()
            total += next(model.parameters()).grad.numpy()
    return float(numpy.linalg.norm(total - steps * gradients) / numpy.linalg.norm(gradients))


def test_feedback_does_not_diverge():
    """What was not sent yet, as a multiple of a gradient, does not grow for ever."""
    left = {steps: pool(2).run(check_feedback, steps)[0] for steps in (60, 240)}
    assert left[240] < 2 * left[60] < 120, left
