"""bmucsc against its formulas in NumPy, in double precision: places, what entries become as drawn, by how much they shrink, bytes."""

import math

import numpy
import pytest
import thinwire
import thinwire.torch
from given_steps import largest_places
from philox import uniform
from small_models import Given, ddp
from worker_pool import pool

ELEMENTS = 3000


def content(name):
    random = numpy.random.default_rng(9)
    values = {"laplace": random.laplace, "cauchy": random.standard_cauchy}.get(name, random.normal)(size=ELEMENTS)
    if name == "outlier":
        values[77] = -3e5
    return values.astype(numpy.float32)


def decoded(values, bits, density, seed):
    return thinwire.exchange([values], f"bmucsc:bits={bits},density={density},feedback=off", seed=seed)


def place_bytes(count, elements):
    lower = int(math.log2(elements // count))
    return -(-count * lower // 8) + -(-(count + ((elements - 1) >> lower)) // 8)


@pytest.mark.parametrize("bits", [2, 4, 6])
@pytest.mark.parametrize("density", [0.05, 0.4, 1])
@pytest.mark.parametrize("name", ["normal", "laplace", "cauchy", "outlier"])
def test_the_largest_become_one_of_their_neighbours_times_a_factor(name, density, bits):
    values = content(name)
    places = largest_places(values, density)
    sent = values[places].astype(numpy.float64)
    found, figures = decoded(values, bits, density, 5)
    assert numpy.count_nonzero(numpy.delete(found, places)) == 0
    assert figures["payload_bytes"] == 12 + 1 + 4 + 4 * 2**bits + -(-len(places) * bits // 8) + place_bytes(len(places), ELEMENTS)

    many = numpy.stack([decoded(values, bits, density, seed)[0][places] for seed in range(5, 25)]).astype(numpy.float64)
    largest = numpy.argmax(abs(sent))  # is a level itself
    factor = many[0, largest] / sent[largest]
    levels = numpy.unique(many) / factor
    levels = numpy.union1d(levels, [-abs(sent[largest]), abs(sent[largest])])
    levels = levels[numpy.diff(levels, prepend=-numpy.inf) > 1e-6 * abs(levels)]  # -1 and 1 are found twice, as rounded
    assert len(levels) <= 2**bits
    above = numpy.clip(numpy.searchsorted(levels, sent), 1, len(levels) - 1)
    low, high = levels[above - 1], levels[above]
    energy, variance = (sent**2).sum(), numpy.maximum((high - sent) * (sent - low), 0).sum()
    numpy.testing.assert_allclose(factor, energy / (energy + variance), rtol=1e-3)  # a level that nothing became is not known

    drawn = numpy.where(uniform(len(sent), 5, 0) * (high - low) < sent - low, high, low) * factor
    wrong = abs(found[places] - drawn) > 1e-5 * numpy.maximum(abs(drawn), 1e-6)
    assert wrong.mean() < 0.02  # a level that is not known, and a draw next to a share


@pytest.mark.parametrize("name", ["normal", "cauchy", "outlier"])
@pytest.mark.parametrize("bits", [2, 3])
def test_it_contracts_on_average_where_rounding_alone_would_not(bits, name):
    values = content(name).astype(numpy.float64)
    errors, unshrunken = [], []
    places = largest_places(values, 1)
    largest = numpy.argmax(abs(values))
    for seed in range(400):
        found = decoded(values.astype(numpy.float32), bits, 1, seed)[0].astype(numpy.float64)
        errors.append(((found - values) ** 2).sum())
        unshrunken.append(((found * values[largest] / found[largest] - values) ** 2).sum())
    energy = (values[places] ** 2).sum()
    expected = numpy.mean(unshrunken) / energy
    numpy.testing.assert_allclose(numpy.mean(errors) / energy, expected / (1 + expected), rtol=0.05)


def check_feedback(steps):
    gradients = content("cauchy").reshape(60, 50)
    model = ddp(Given({"matrix": (60, 50)}))
    total = numpy.zeros((60, 50))
    with thinwire.torch.attach(model, "bmucsc:bits=2,density=0.05"):
        for _ in range(steps):
            model.zero_grad()
            model({"matrix": gradients}).backward()
            total += next(model.parameters()).grad.numpy()
    return float(numpy.linalg.norm(total - steps * gradients) / numpy.linalg.norm(gradients))


def test_with_feedback_few_levels_do_not_diverge():
    """What was not sent yet, as a multiple of a gradient, does not grow for ever."""
    left = {steps: pool(2).run(check_feedback, steps)[0] for steps in (60, 240)}
    assert left[240] < 2 * left[60] < 120, left
