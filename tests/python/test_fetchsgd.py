"""fetchsgd against an independent implementation of the paper's algorithm 1 in NumPy, in double precision, over many steps."""

import numpy
import pytest
import thinwire
from given_steps import check_steps, chunks_of, gradients_of, largest_places
from sketches import Hashes, mix
from worker_pool import pool

NUMBERS = {"long": 0, "matrix": 1}


def hashed(seed, key):
    return int(mix(numpy.uint64(key) ^ numpy.uint64(seed))[0])


class Sketch:
    """The tables of a chunk: u or e."""

    def __init__(self, parameter, first, elements, cells, tables):
        chunk = hashed(parameter, first)
        self.hashes = [Hashes(hashed(chunk, t), elements, cells) for t in range(tables)]
        self.tables = [numpy.zeros(hashes.floats) for hashes in self.hashes]

    def multiply(self, factor):
        self.tables = [factor * table for table in self.tables]

    def add(self, values):
        self.tables = [table + hashes.sketch(values) for table, hashes in zip(self.tables, self.hashes, strict=True)]

    def add_sketch(self, other):
        self.tables = [own + others for own, others in zip(self.tables, other.tables, strict=True)]

    def zero(self, places):
        for table, hashes in zip(self.tables, self.hashes, strict=True):
            table[hashes.place[places]] = 0

    def estimates(self):
        return numpy.median([hashes.estimates(table) for table, hashes in zip(self.tables, self.hashes, strict=True)], 0)


class Reference:
    """All workers share it."""

    def __init__(self, density=0.01, sketch=10.0, tables=5, momentum=0.9):
        self.density, self.sketch, self.tables, self.momentum = density, sketch, tables, momentum
        self.kept = {}

    def cells(self, elements):
        return 0 if self.density * self.sketch >= 1 else int(self.density * self.sketch * elements) // (16 * self.tables)

    def __call__(self, name, values, step):
        return numpy.concatenate([self.result(name, number, chunk) for number, chunk in enumerate(chunks_of(values.mean(0)))])

    def result(self, name, number, mean):
        cells = self.cells(len(mean))
        if cells == 0:
            return mean
        shape = NUMBERS[name], number * 2**15, len(mean), cells, self.tables
        u, e = self.kept.setdefault((name, number), (Sketch(*shape), Sketch(*shape)))
        u.multiply(self.momentum)
        u.add(mean)
        e.add_sketch(u)
        estimates = e.estimates()
        places = largest_places(estimates, self.density)
        u.zero(places)
        e.zero(places)
        sent = numpy.zeros(len(mean))
        sent[places] = estimates[places]
        return sent


def exact(rank, step):
    """In quarters, and momenta of a half: sums of a few steps are exact in float32, so that all places are the same."""
    return {name: (values * 4).round() / 4 for name, values in gradients_of(rank, step).items()}


def spec_of(settings):
    return "fetchsgd:" + ",".join(f"{name}={value}" for name, value in settings.items())


def check(steps, settings, resumed_every=None):
    check_steps(spec_of(settings), steps, Reference(**settings), tolerance=1e-6, gradients=exact, resumed_every=resumed_every)


@pytest.mark.parametrize("workers", [2, 4])  # a mean of quarters over three workers would be rounded
@pytest.mark.parametrize("settings", [{"momentum": 0.5}, {"density": 0.03, "sketch": 4, "tables": 1, "momentum": 0}, {"tables": 3, "momentum": 0.5}], ids=str)
def test_every_step_is_what_the_paper_says(workers, settings):
    pool(workers).run(check, 8, settings)


def test_a_checkpoint_holds_both_sketches():
    pool(2).run(check, 7, {"momentum": 0.5}, 3)


@pytest.mark.parametrize("settings", [{"density": 0.01}, {"density": 0.001}, {"density": 0.05, "sketch": 3, "tables": 1}, {"density": 0.2}], ids=str)
def test_one_exchange_and_its_bytes(settings):
    gradients = [exact(rank, 2)["long"].ravel() for rank in range(2)]
    mean, figures = thinwire.exchange(gradients, spec_of(settings), seed=11)
    reference = Reference(**settings)
    numpy.testing.assert_allclose(mean, reference("long", numpy.stack(gradients), 0), rtol=1e-6)
    floats = 1
    for chunk in chunks_of(gradients[0]):
        floats += 16 * reference.cells(len(chunk)) * reference.tables or len(chunk)
    assert figures["payload_bytes"] == 4 * floats
    assert figures["rounds"] == 1
