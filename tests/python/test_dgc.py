"""dgc against an independent implementation of the paper's algorithm 4 in NumPy, in double precision, over many steps."""

import numpy
import pytest
import thinwire
from given_steps import check_steps, chunks_of, largest_places
from worker_pool import pool


class Reference:
    """For all workers at once; a chunk of the grid is what the paper calls a gradient."""

    def __init__(self, density, momentum=0.9, clip=0.0, warmup=0):
        self.density, self.momentum, self.clip, self.warmup = density, momentum, clip, warmup
        self.u, self.v = {}, {}

    def density_at(self, step):
        for quarter, density in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):
            if 4 * step < (quarter + 1) * self.warmup:
                return max(density, self.density)
        return self.density

    def __call__(self, name, values, step):
        mean = numpy.zeros(values.shape[1])
        for worker, gradient in enumerate(values):
            sent = [self.sent_of((name, worker, number), chunk, len(values), self.density_at(step))
                    for number, chunk in enumerate(chunks_of(gradient))]  # fmt: skip
            mean += numpy.concatenate(sent) / len(values)
        return mean

    def sent_of(self, key, gradient, workers, density):
        length, longest = numpy.linalg.norm(gradient), self.clip / numpy.sqrt(workers)
        if self.clip > 0 and length > longest:
            gradient = gradient * longest / length
        u = self.momentum * self.u.get(key, 0) + gradient
        v = self.v.get(key, 0) + u
        places = largest_places(v, density)
        sent = numpy.zeros(len(v))
        sent[places] = v[places]
        u[places] = v[places] = 0
        self.u[key], self.v[key] = u, v
        return sent


def check(steps, settings):
    spec = "dgc:" + ",".join(f"{name}={value}" for name, value in settings.items())
    return check_steps(spec, steps, Reference(**settings), tolerance=1e-5)


@pytest.mark.parametrize("workers", [2, 3])
def test_every_step_is_what_the_paper_says(workers):
    pool(workers).run(check, 12, {"density": 0.01})
    pool(workers).run(check, 6, {"density": 0.1, "momentum": 0.5, "clip": 20.0})


def test_density_comes_down():
    assert len({Reference(0.01, warmup=8).density_at(step) for step in range(9)}) == 4
    pool(2).run(check, 10, {"density": 0.01, "warmup": 8})
    pool(2).run(check, 4, {"density": 0.02, "warmup": 3})


def check_resumed():
    check_steps("dgc:density=0.02", 7, Reference(0.02), tolerance=1e-5, resumed_every=3)


def test_a_checkpoint_holds_the_momentum():
    pool(2).run(check_resumed)


def sent_by(spec, steps):
    return check_steps(spec, steps, Reference(float(spec.split("density=")[1].split(",")[0]), momentum=0.0), tolerance=1e-5)


def test_without_momentum_it_is_topk():
    """The same messages, and the same bytes of them."""
    assert pool(2).run(sent_by, "dgc:density=0.01,momentum=0", 5) == pool(2).run(sent_by, "topk:density=0.01", 5)


def test_what_is_sent_at_once_has_no_momentum():
    gradient = numpy.linspace(-1, 1, 100, dtype=numpy.float32)
    mean, _ = thinwire.exchange([gradient, gradient], "dgc:density=1")
    numpy.testing.assert_array_equal(mean, gradient)
