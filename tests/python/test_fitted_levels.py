"""Quantizers whose levels are fitted to a chunk's values, against slow references in double precision that know the values and no histogram."""

import math

import numpy
import pytest
import thinwire
from philox import uniform

ROWS = ["alq", "amq", "mucsc", "tinyscript", "zipml"]
CONTENTS = ["normal", "laplace", "outlier", "sparse", "one side", "constant", "zeros", "tiny", "huge"]
ELEMENTS = 3000


def content(name):
    random = numpy.random.default_rng(6)
    values = random.normal(size=ELEMENTS) if name == "normal" else random.laplace(size=ELEMENTS)
    if name == "outlier":
        values[77] = -3e5
    if name == "sparse":
        values *= random.random(ELEMENTS) < 0.1
    if name == "one side":
        values = abs(values)
    if name == "constant":
        values[:] = -0.7
    if name == "zeros":
        values[:] = 0
    return (values * {"tiny": 1e-41, "huge": 1e37}.get(name, 1)).astype(numpy.float32)


def decoded(row, bits, values, seed=5):
    mean, figures = thinwire.exchange([values], f"{row}:bits={bits}", seed=seed)
    return mean, figures["payload_bytes"]


def found_levels(row, bits, values):
    """In units of the largest magnitude: those that some value becomes in one of a few steps."""
    unit = abs(values.astype(numpy.float64)).max()
    return numpy.unique(numpy.concatenate([decoded(row, bits, values, seed)[0] for seed in range(5, 12)]).astype(numpy.float64) / unit)


def variance(x, levels):
    """Of all values together, rounded at random to their neighbours."""
    above = numpy.clip(numpy.searchsorted(levels, x), 1, len(levels) - 1)
    return ((levels[above] - x) * (x - levels[above - 1])).sum()


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("bits", [2, 4, 6])
@pytest.mark.parametrize("name", CONTENTS)
def test_values_become_one_of_their_neighbours_as_drawn(name, bits, row):
    values = content(name)
    found, payload = decoded(row, bits, values)
    assert payload == 12 + 1 + 4 + 4 * 2**bits + -(-ELEMENTS * bits // 8)
    if name == "zeros":
        return numpy.testing.assert_array_equal(found, 0)
    unit = abs(values.astype(numpy.float64)).max()
    levels, x = found_levels(row, bits, values), values.astype(numpy.float64) / unit
    assert len(levels) <= 2**bits and abs(levels).max() <= 1 + 1e-6
    if name == "constant":
        return numpy.testing.assert_allclose(found, values, rtol=1e-6)
    below = numpy.clip(numpy.searchsorted(levels, x * (1 - 1e-9), side="right") - 1, 0, len(levels) - 2)
    gap = levels[below + 1] - levels[below]
    expected = levels[below + (uniform(ELEMENTS, 5, 0) * gap < x - levels[below])]
    # A level that nothing became, rounding of denormal units, and a draw next to a share.
    wrong = abs(found / unit - expected) > (1e-3 if name == "tiny" else 1e-6) * numpy.maximum(abs(expected), 1e-30)
    assert wrong.mean() < 0.01


def least_variance(x, count):
    """Of levels from -1 to 1 that are values themselves, as the best ones are: dynamic programming over all of them."""
    x = numpy.unique(numpy.concatenate([x, [-1, 1]]))
    sums = [numpy.concatenate([[0], numpy.cumsum(x**power)]) for power in range(3)]
    mass, first, second = (s[None, 1:] - s[1:, None] for s in sums)
    cost = numpy.where(mass >= 0, (x[:, None] + x) * first - x[:, None] * x * mass - second, numpy.inf)
    least = cost[0]
    for _ in range(count - 2):
        least = (least[:, None] + cost).min(0)
    return least[-1]


@pytest.mark.parametrize("row", ["mucsc", "zipml"])
@pytest.mark.parametrize("name", ["normal", "laplace", "outlier", "one side"])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_levels_of_the_values_have_the_least_variance(bits, name, row):
    values = content(name)[:1500]
    x = values.astype(numpy.float64) / abs(values).max()
    levels = numpy.union1d(found_levels(row, bits, values), [-1, 1])
    assert variance(x, levels) < 1.05 * least_variance(x, 2**bits)  # bins of an eighth of an octave do not tell values apart


def grid_of(distribution):
    """Of a distribution of magnitudes: fine steps from 0 to 1, and what lies in each of them."""
    edges = numpy.concatenate([[0], numpy.geomspace(1e-9, 1, 20001)])
    below = numpy.array([distribution(edge) for edge in edges])
    return (edges[1:] + edges[:-1]) / 2, numpy.diff(below)


def normal_like(r):
    mean, deviation = r.mean(), r.std()
    return lambda x: 0.5 * math.erf((x - mean) / deviation / math.sqrt(2))


def weibull_like(r):
    low, high = 0.1, 10.0
    for _ in range(100):
        shape = (low + high) / 2
        ratio = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2
        low, high = (low, shape) if ratio < numpy.square(r).mean() / r.mean() ** 2 else (shape, high)
    scale = r.mean() / math.gamma(1 + 1 / shape)
    return lambda x: 1 - math.exp(-((x / scale) ** shape))


def best_levels(grid, count):
    """From 0 to 1: each at the place between its neighbours that Faghri et al.'s condition names, until none moves."""
    x, weight = grid
    mass, first = numpy.cumsum(weight), numpy.cumsum(weight * x)
    share = numpy.cumsum(numpy.cbrt(weight * numpy.square(numpy.gradient(x))))
    levels = numpy.interp(numpy.arange(count) / (count - 1) * share[-1], share, x)
    levels[0], levels[-1] = 0, 1
    for _ in range(300):
        for j in range(1, count - 1):
            a, c = levels[j - 1], levels[j + 1]
            between = numpy.interp([a, c], x, mass), numpy.interp([a, c], x, first)
            way = (between[1][1] - between[1][0] - a * (between[0][1] - between[0][0])) / (c - a)
            levels[j] = numpy.interp(between[0][1] - way, mass, x)
    return levels


def variance_of(grid, positive):
    """Of magnitudes that are distributed so."""
    x, weight = grid
    levels = numpy.concatenate([-positive[::-1], positive]) if positive[0] > 0 else positive
    above = numpy.clip(numpy.searchsorted(levels, x), 1, len(levels) - 1)
    return (weight * (levels[above] - x) * (x - levels[above - 1])).sum()


def positive_levels(row, bits, values):
    found = found_levels(row, bits, values)
    return numpy.union1d(found[found >= 0], [1])


@pytest.mark.parametrize("name", ["normal", "laplace"])
@pytest.mark.parametrize("bits", [3, 4])
def test_alq_and_tinyscript_fit_their_distribution(bits, name):
    values = content(name)
    x = values.astype(numpy.float64) / abs(values).max()
    for row, distribution in (("alq", normal_like(abs(x))), ("tinyscript", weibull_like(x[x > 0]))):
        grid = grid_of(distribution)
        found, best = positive_levels(row, bits, values), best_levels(grid, 2 ** (bits - 1))
        assert variance_of(grid, found) < 1.01 * variance_of(grid, best)
        numpy.testing.assert_allclose(found, best, rtol=0.05)


@pytest.mark.parametrize("name", ["normal", "laplace"])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_amq_has_the_best_powers(bits, name):
    values = content(name)
    grid = grid_of(normal_like(abs(values.astype(numpy.float64)) / abs(values).max()))

    def powers(p):
        return p ** numpy.arange(2 ** (bits - 1) - 1.0, -1, -1)

    found = positive_levels("amq", bits, values)
    numpy.testing.assert_allclose(found, powers(found[-2]), rtol=1e-4)
    least = min(variance_of(grid, powers(p)) for p in numpy.geomspace(1e-3, 0.99, 200))
    assert variance_of(grid, found) < 1.02 * least


def test_error_falls_below_that_of_even_levels():
    values = numpy.random.default_rng(8).laplace(size=32768).astype(numpy.float32)
    errors = {row: sum(numpy.square(thinwire.exchange([values], f"{row}:bits=4", seed=seed)[0] - values).sum() for seed in range(4))
              for row in [*ROWS, "dorefa"]}  # fmt: skip
    assert all(errors[row] < 0.5 * errors["dorefa"] for row in ROWS), errors
    assert errors["zipml"] < 1.02 * min(errors.values()), errors
