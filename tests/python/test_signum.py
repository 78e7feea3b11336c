"""signum against an independent implementation in NumPy, in double precision, over many steps."""

import numpy
import pytest
import thinwire
from given_steps import check_steps
from worker_pool import pool


class Reference:
    """Algorithm 1 of the paper; NaN where the sign is drawn: where votes are equal, or a momentum is so near to 0 that rounding decides."""

    def __init__(self, momentum, scale):
        self.momentum, self.scale = momentum, scale
        self.m = {}

    def __call__(self, name, values, step):
        self.m[name] = m = self.momentum * self.m.get(name, 0) + (1 - self.momentum) * values
        votes = numpy.sign(m).sum(0)
        doubtful = (votes == 0) | (abs(m) < 1e-6).any(0) & m.any(1).all()
        return numpy.where(doubtful, numpy.nan, self.scale * numpy.sign(votes))


def check(momentum, reduce):
    return check_steps(f"signum:momentum={momentum},scale=0.25,reduce={reduce}", 8, Reference(momentum, 0.25))


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("reduce", ["gather", "scatter"])
def test_every_step_is_the_vote_of_momenta(workers, reduce):
    pool(workers).run(check, 0.9, reduce)
    pool(workers).run(check, 0.5, reduce)


def check_resumed():
    check_steps("signum:scale=0.25", 7, Reference(0.9, 0.25), resumed_every=3)


def test_a_checkpoint_holds_the_momentum():
    pool(3).run(check_resumed)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_first_step_is_signsgds(workers):
    """The same votes, and the same drawn ones."""
    gradients = [numpy.random.default_rng(rank).normal(size=4099).astype(numpy.float32).round(1) for rank in range(workers)]
    found, figures = thinwire.exchange(gradients, "signum", seed=3)
    expected, of_signsgd = thinwire.exchange(gradients, "signsgd", seed=3)
    numpy.testing.assert_array_equal(found, expected)
    assert figures["payload_bytes"] == of_signsgd["payload_bytes"]
