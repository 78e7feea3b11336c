"""sketchedsgd against an independent implementation in NumPy, in double precision: hashes, sketches, medians, places and draws."""

import math

import numpy
import pytest
import thinwire
from given_steps import check_steps, chunks_of, gradients_of, largest_places
from philox import random_words
from sketches import Hashes
from worker_pool import pool


def shares(elements, density, sketch, tables, drawn):
    """Entries that are sent, how many of these are drawn, and a table's cells."""
    sent = elements if density * (1 + sketch) >= 1 else math.ceil(density * elements)
    few, cells = math.ceil(drawn * sent), int(density * sketch * elements) // (16 * tables)
    return (sent, few, cells) if cells and few < sent < elements else (sent, sent, 0)


def places_of(chunks, settings, counter, seed):
    """chunks: of all workers (workers, elements). counter: of what all workers draw for the chunk."""
    elements = chunks.shape[1]
    sent, drawn, cells = shares(elements, **settings)
    large = numpy.array([], dtype=int)
    if cells:
        words = random_words(10, (*counter[:3], 0xFFFFFFFF), (seed, 0)).astype(object)
        estimates = []
        for t in range(settings["tables"]):
            hashes = Hashes(int(words[2 * t] | words[2 * t + 1] << 32), elements, cells)
            estimates.append(hashes.estimates(sum(hashes.sketch(values) for values in chunks)))
        large = largest_places(numpy.median(estimates, 0), (sent - drawn) / elements)
    others = numpy.setdiff1d(numpy.arange(elements), large)
    words = random_words(drawn, (*counter[:3], 0x7FFFFFFF), (seed, 0))
    edges = [j * len(others) // max(drawn, 1) for j in range(drawn + 1)]
    ranks = [edges[j] + int(words[j]) * (edges[j + 1] - edges[j]) // 2**32 for j in range(drawn)]
    return numpy.concatenate([large, others[ranks]])


class Reference:
    """For all workers at once."""

    NUMBERS = {"long": 0, "matrix": 1}

    def __init__(self, seed=0, feedback=True, **settings):
        self.settings = {"density": 0.01, "sketch": 10.0, "tables": 5, "drawn": 0.1, **settings}
        self.seed, self.feedback, self.residuals = seed, feedback, {}

    def __call__(self, name, values, step):
        means = []
        for number, chunk in enumerate(zip(*(chunks_of(of_worker) for of_worker in values), strict=True)):
            gradients = numpy.stack(chunk).astype(float)
            key = name, number
            residual = self.residuals.get(key, 0 * gradients)
            full = gradients + residual
            sent = 0 * full
            places = places_of(full, self.settings, (number * 2**14, self.NUMBERS[name], step), self.seed)
            assert len(numpy.unique(places)) == len(places)
            if gradients.any() or not self.feedback:  # a chunk that nobody uses waits
                sent[:, places] = full[:, places]
            self.residuals[key] = (full - sent) * self.feedback
            means.append(sent.mean(0))
        return numpy.concatenate(means)


def exact(rank, step):
    """In 64ths, whose sums in a sketch are exact in float32: estimates are the same numbers, and so are all places."""
    return {name: (values * 64).round() / 64 for name, values in gradients_of(rank, step).items()}


def spec_of(settings):
    return "sketchedsgd:" + ",".join(f"{name}={value}" for name, value in settings.items())


def check(steps, settings):
    return check_steps(spec_of(settings), steps, Reference(**settings), tolerance=1e-6, gradients=exact)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("settings", [{"density": 0.01}, {"density": 0.03, "tables": 1, "drawn": 0.3}, {"tables": 3, "sketch": 4}], ids=str)
def test_every_step_is_what_the_paper_says(workers, settings):
    pool(workers).run(check, 6, settings)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("settings", [{}, {"density": 0.001}, {"density": 0.05, "drawn": 0, "tables": 1}, {"density": 0.3, "sketch": 1.5},
                                      {"density": 0.3}], ids=str)  # fmt: skip
def test_one_exchange_and_its_bytes(workers, settings):
    gradients = [exact(rank, 2)["long"].ravel() for rank in range(workers)]
    mean, figures = thinwire.exchange(gradients, spec_of({**settings, "feedback": "off"}), seed=11)
    reference = Reference(seed=11, feedback=False, **settings)
    numpy.testing.assert_allclose(mean, reference("long", numpy.stack(gradients), 0), rtol=1e-6)
    floats = 1
    for chunk in chunks_of(gradients[0]):
        sent, _, cells = shares(len(chunk), **reference.settings)
        floats += sent + 16 * cells * reference.settings["tables"]
    assert figures["payload_bytes"] == 4 * floats
    assert figures["rounds"] == (1 if reference.settings["density"] * (1 + reference.settings["sketch"]) >= 1 else 2)


def test_what_is_large_in_the_sum_alone_is_found():
    """Entries that no worker would send by itself: its own noise is larger everywhere else."""
    common = numpy.zeros(32768, dtype=numpy.float32)
    hidden = numpy.random.default_rng(1).choice(32768, 100, replace=False)
    common[hidden] = 1
    noise = numpy.random.default_rng(2).choice([-2.0, 2.0], 32768).astype(numpy.float32)
    noise[hidden] = 0
    gradients = [common + noise, common - noise]
    found, _ = thinwire.exchange(gradients, "sketchedsgd:density=0.01,sketch=20,feedback=off")
    alone, _ = thinwire.exchange(gradients, "topk:density=0.01,feedback=off")
    assert numpy.count_nonzero(found[hidden]) > 95 and numpy.count_nonzero(alone[hidden]) == 0


def test_what_a_sketch_cannot_tell_apart_is_drawn_some_day():
    """In a table of one cell all that share its place have one estimate; with none drawn the same ones would be sent for ever."""
    values = numpy.full(2000, 1.0, dtype=numpy.float32)
    sent = numpy.zeros(2000, dtype=bool)
    for seed in range(120):
        mean, _ = thinwire.exchange([values], "sketchedsgd:density=0.02,sketch=1,tables=1,drawn=0.5,feedback=off", seed=seed)
        sent |= mean != 0
    assert sent.mean() > 0.6
