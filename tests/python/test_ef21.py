"""ef21 against an independent implementation of the paper's algorithm 2 in NumPy, in double precision, over many steps."""

import numpy
import pytest
import thinwire
from given_steps import SHAPES, check_steps, chunks_of, largest_places
from worker_pool import pool


class Reference:
    """For all workers at once; a chunk of the grid is what the paper calls a gradient."""

    def __init__(self, density):
        self.density = density
        self.estimates = {}

    def __call__(self, name, values, step):
        means = []
        for number, chunk in enumerate(zip(*(chunks_of(of_worker) for of_worker in values), strict=True)):
            gradients = numpy.stack(chunk).astype(float)
            estimates = self.estimates.setdefault((name, number), numpy.zeros_like(gradients))
            if gradients.any():  # a chunk that nobody uses waits
                for gradient, estimate in zip(gradients, estimates, strict=True):
                    places = largest_places(gradient - estimate, self.density)
                    estimate[places] = gradient[places]
            means.append(estimates.mean(0))
        return numpy.concatenate(means)


def check(steps, density):
    return check_steps(f"ef21:density={density}", steps, Reference(density), tolerance=1e-5)


@pytest.mark.parametrize("workers", [2, 3])
def test_every_step_is_what_the_paper_says(workers):
    pool(workers).run(check, 12, 0.01)
    pool(workers).run(check, 6, 0.1)


def check_resumed():
    check_steps("ef21:density=0.02", 7, Reference(0.02), tolerance=1e-5, resumed_every=3)


def test_a_checkpoint_holds_estimates():
    pool(2).run(check_resumed)


def test_it_sends_what_topk_sends():
    """The first step is topk's; later ones have other entries, and as many bytes."""
    gradient = numpy.random.default_rng(1).normal(size=40000).astype(numpy.float32)
    first, figures = thinwire.exchange([gradient, -2 * gradient], "ef21:density=0.01")
    expected, of_topk = thinwire.exchange([gradient, -2 * gradient], "topk:density=0.01")
    numpy.testing.assert_array_equal(first, expected)
    assert figures["payload_bytes"] == of_topk["payload_bytes"]


def constant(rank):
    return {name: numpy.random.default_rng(rank).normal(size=shape).astype(numpy.float32) for name, shape in SHAPES.items()}


def check_constant(steps):
    return check_steps("ef21:density=0.25", steps, Reference(0.25), tolerance=1e-6, gradients=lambda rank, _: constant(rank))


def test_the_estimate_of_a_gradient_that_stays_becomes_it():
    """What classic feedback never does: there the result keeps jumping between entries."""
    pool(2).run(check_constant, 6)
    reference = Reference(0.25)
    values = numpy.stack([constant(rank)["matrix"].ravel() for rank in range(2)]).astype(float)
    for step in range(4):
        mean = reference("matrix", values, step)
    numpy.testing.assert_array_equal(mean, values.mean(0))
