"""skcompress against an independent implementation in NumPy, in double precision: bins, MinMaxSketches, and what they are read as."""

import math

import numpy
import pytest
import thinwire
from given_steps import check_steps, chunks_of, gradients_of, largest_places
from sketches import mix
from worker_pool import pool


class MinMaxSketch:
    """Of one group. Insertion keeps the least number, a query takes the greatest of what rows say."""

    def __init__(self, seeds, cells, worst):
        self.seeds, self.cells = seeds, cells
        self.rows = numpy.full((len(seeds), cells), worst)

    def cell(self, seed, place):
        hashed = int(mix(numpy.uint64(place) ^ numpy.uint64(seed))[0])
        return (hashed >> 32) * self.cells >> 32

    def insert(self, place, number):
        for row, seed in zip(self.rows, self.seeds, strict=True):
            row[self.cell(seed, place)] = min(row[self.cell(seed, place)], number)

    def query(self, place):
        return max(row[self.cell(seed, place)] for row, seed in zip(self.rows, self.seeds, strict=True))


def bins_of(values, places, bins):
    """By quantiles of magnitudes, of equal ones the first ones first."""
    order = numpy.argsort(abs(values[places]), kind="stable")
    numbers = numpy.zeros(len(places), dtype=int)
    numbers[order] = numpy.arange(len(places)) * bins // len(places)
    return numbers


def read_bins(values, places, step, first, bits=6, groups=8, rows=2, cells=0.2):
    """What every entry's bin is read as."""
    numbers, width = bins_of(values, places, 2**bits), 2**bits // groups
    chunk = int(mix(numpy.uint64(first) ^ numpy.uint64(step))[0])
    seeds = [int(mix(numpy.uint64(chunk) ^ numpy.uint64(row))[0]) for row in range(rows)]
    in_row = math.ceil(cells * len(places) / groups)
    sketches = [MinMaxSketch(seeds, in_row, width - 1) for _ in range(groups)]
    for place, number in zip(places, numbers, strict=True):
        sketches[number // width].insert(place, number % width)
    return numbers, numpy.array([number // width * width + sketches[number // width].query(place)
                                 for place, number in zip(places, numbers, strict=True)])  # fmt: skip


class Reference:
    def __init__(self, density=0.05, feedback=True, **sketching):
        self.density, self.feedback, self.sketching = density, feedback, sketching
        self.residuals = {}

    def __call__(self, name, values, step):
        return numpy.mean([self.sent_by((name, worker), of_worker, step) for worker, of_worker in enumerate(values)], 0)

    def sent_by(self, key, gradient, step):
        full = gradient + self.residuals.get(key, 0)
        sent = [self.coded(chunk, step, number * 2**15) for number, chunk in enumerate(chunks_of(full))]
        self.residuals[key] = (full - numpy.concatenate(sent)) * self.feedback
        return numpy.concatenate(sent)

    def coded(self, values, step, first):
        places = largest_places(values, self.density)
        _, read = read_bins(values, places, step, first, **self.sketching)
        sent = numpy.zeros(len(values))
        for number in numpy.unique(read):
            of_bin = places[read == number]
            sent[of_bin] = numpy.sign(values[of_bin]) * abs(values[of_bin]).mean()
        return sent


def spec_of(density, **sketching):
    return "skcompress:" + ",".join(f"{name}={value}" for name, value in {"density": density, **sketching}.items())


def check(steps, settings, resumed_every=None):
    return check_steps(spec_of(**settings), steps, Reference(**settings), tolerance=1e-5, resumed_every=resumed_every)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("settings", [{}, {"density": 0.01, "bits": 4, "groups": 1, "cells": 0.5}, {"density": 0.1, "bits": 8, "groups": 16, "rows": 3},
                                      {"bits": 4, "groups": 16}], ids=str)  # fmt: skip
def test_one_exchange_and_its_bytes(workers, settings):
    gradients = [gradients_of(rank, 1)["long"].ravel() for rank in range(workers)]
    settings = {"density": 0.05, **settings}
    mean, figures = thinwire.exchange(gradients, spec_of(**settings, feedback="off"))
    expected = Reference(feedback=False, **settings)("long", numpy.stack(gradients).astype(float), 0)
    numpy.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-7)
    assert figures["rounds"] == 1


def test_every_step_with_feedback():
    pool(2).run(check, 3, {"density": 0.02, "bits": 4, "groups": 4})


def test_no_entry_is_read_as_a_higher_bin():
    """And each stays in its group: that is what a MinMaxSketch is for."""
    values = numpy.random.default_rng(1).normal(size=32768)
    places = largest_places(values, 0.05)
    inserted, read = read_bins(values, places, 0, 0)
    assert (read <= inserted).all() and (read // 8 == inserted // 8).all() and (read < inserted).any()


def test_many_cells_lose_nothing_of_bins():
    values = numpy.random.default_rng(1).normal(size=4096)
    places = largest_places(values, 0.05)
    inserted, read = read_bins(values, places, 0, 0, rows=3, cells=4)
    assert (read == inserted).mean() > 0.9
