"""Quantizers of levels and of signs against an independent implementation in NumPy: what one worker's gradient decodes to, and its bytes."""

import ml_dtypes
import numpy
import pytest
import thinwire
from philox import uniform

ELEMENTS = 1300
CONTENTS = ["laplace", "sparse", "constant", "zeros", "tiny", "huge"]


def content(name):
    random = numpy.random.default_rng(3)
    values = random.laplace(size=ELEMENTS)
    if name == "sparse":
        values *= random.random(ELEMENTS) < 0.1
    if name == "constant":
        values[:] = -0.7
    if name == "zeros":
        values[:] = 0
    return (values * {"tiny": 1e-42, "huge": 1e37}.get(name, 1)).astype(numpy.float32)


def buckets_of(values, bucket):
    return [values[first : first + bucket] for first in range(0, len(values), bucket)]


def units(values, bucket, norm, outermost):
    """What is sent for each bucket, spread over its entries."""
    found = []
    for part in buckets_of(values.astype(numpy.float64), bucket):
        n = norm(part)
        unit = numpy.float32(max(min(n, 0.999 * 3.4028234663852886e38) / outermost, 1.401298464324817e-45)) if n > 0 else numpy.float32(0)
        found.append(numpy.full(len(part), unit, numpy.float32))
    return numpy.concatenate(found)


def shares(values, unit):
    """Values in units, as float32 arithmetic has them; units without a reciprocal are made larger, and values with them."""
    larger = numpy.where(unit < numpy.finfo(numpy.float32).tiny, numpy.float32(2.0**100), numpy.float32(1))
    return values * larger * (numpy.float32(1) / numpy.where(unit > 0, unit * larger, numpy.float32(1)))


def at_random(x, levels, seed=5):
    """The level above where a random number is less than the share of the way to it."""
    levels = numpy.asarray(levels, numpy.float64)
    below = numpy.clip(numpy.searchsorted(levels, x, side="right") - 1, 0, len(levels) - 2)
    share = (x - levels[below]) / (levels[below + 1] - levels[below])
    return levels[below + (uniform(len(x), seed, 0) < share)].astype(numpy.float32)


def decoded(spec, values):
    """What one worker's gradient is after a step, and the payload's bytes."""
    mean, figures = thinwire.exchange([values], spec + ",reduce=gather", seed=5)
    return mean, figures["payload_bytes"]


def bytes_of(unit_bytes, bits, bucket):
    return 12 + 1 + unit_bytes * -(-ELEMENTS // bucket) + -(-ELEMENTS * bits // 8)


def largest(part):
    return abs(part).max()


def euclidean(part):
    return numpy.sqrt(numpy.square(part).sum())


def same_but_for_rounding(found, expected, unit):
    """Random numbers next to a share may fall on either side of it, and a unit in the last place of float32 is no difference."""
    scale = numpy.maximum(abs(expected), unit)
    assert (abs(found - expected) > 2e-6 * scale).mean() < 2e-3


HALVED = {bits: [0.0] + [2.0 ** (1 - i) for i in range(2 ** (bits - 1) - 1, 0, -1)] for bits in range(2, 9)}


def both_signs(positive):
    return sorted({-level for level in positive} | set(positive))


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("clip", [0, 2.5])
def test_terngrad(name, clip):
    values = content(name)

    def norm(part):
        return min(largest(part), clip * part.std()) if clip else largest(part)

    unit = units(values, 32768, norm, 1)
    if name == "constant" and clip:
        return  # its standard deviation is what rounding leaves
    found, payload = decoded(f"terngrad:clip={clip}", values)
    same_but_for_rounding(found, at_random(shares(values, unit), [-1, 0, 1]) * unit, unit)
    assert payload == bytes_of(4, 2, 32768)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("bits", [2, 3, 5, 8])
@pytest.mark.parametrize(("row", "norm", "bucket"), [("nuqsgd", euclidean, 512), ("natural", largest, 32768), ("natural", largest, 100)])
def test_halved_levels(row, norm, bucket, bits, name):
    values = content(name)
    unit = units(values, bucket, norm, 1)
    found, payload = decoded(f"{row}:bits={bits},bucket={bucket}", values)
    same_but_for_rounding(found, at_random(shares(values, unit), both_signs(HALVED[bits])) * unit, unit)
    assert payload == bytes_of(4, bits, bucket)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_dorefa(bits, name):
    values, steps = content(name), 2**bits - 1
    unit = units(values, 32768, largest, steps)
    found, payload = decoded(f"dorefa:bits={bits}", values)
    same_but_for_rounding(found, at_random(shares(values, unit), numpy.arange(-steps, steps + 1, 2)) * unit, unit)
    assert payload == bytes_of(4, bits, 32768)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize(("bits", "bucket"), [(8, 512), (4, 32), (2, 1), (3, 32768)])
def test_int(bits, bucket, name):
    values, most = content(name), 2 ** (bits - 1) - 1
    unit = units(values, bucket, largest, most)
    found, payload = decoded(f"int:bits={bits},bucket={bucket},feedback=off", values)
    numpy.testing.assert_array_equal(found, numpy.clip(numpy.rint(shares(values, unit)), -most, most) * unit)
    assert payload == bytes_of(4, bits, bucket)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize(("format_", "dtype"), [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)])
def test_fp8(format_, dtype, name):
    values, most = content(name), float(ml_dtypes.finfo(dtype).max)
    unit = units(values, 32768, largest, most)
    found, payload = decoded(f"fp8:format={format_},feedback=off", values)
    expected = numpy.clip(shares(values, unit), -most, most).astype(dtype).astype(numpy.float32)
    numpy.testing.assert_array_equal(found, expected * unit)
    assert payload == bytes_of(4, 8, 32768)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("bucket", [32, 100])
def test_mxfp4(bucket, name):
    values = content(name)
    parts = buckets_of(values, bucket)
    exponents = [max(numpy.frexp(largest(part))[1] - 1 - 2, -127) if largest(part) > 0 else -127 for part in parts]
    unit = numpy.concatenate([numpy.full(len(part), 2.0**exponent) for part, exponent in zip(parts, exponents, strict=True)])
    expected = numpy.clip(values / unit, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(numpy.float64) * unit
    found, payload = decoded(f"mxfp4:bucket={bucket},feedback=off", values)
    numpy.testing.assert_array_equal(found, expected.astype(numpy.float32))
    assert payload == bytes_of(1, 4, bucket)


@pytest.mark.parametrize("name", CONTENTS)
def test_signs(name):
    values = content(name)
    exact = values.astype(numpy.float64)
    mean = abs(exact).mean()
    found, payload = decoded("efsign:feedback=off", values)
    numpy.testing.assert_allclose(found, numpy.where(values > 0, 1, -1) * mean, rtol=1e-5, atol=1e-44)
    assert payload == bytes_of(4, 1, 32768)
    above, below = exact[values > 0], exact[values <= 0]
    expected = numpy.where(values > 0, above.mean() if len(above) else 0, below.mean() if len(below) else 0)
    found, payload = decoded("onebit:feedback=off", values)
    numpy.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-44)
    assert payload == bytes_of(8, 1, 32768)
