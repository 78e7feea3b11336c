"""topk and randomk against independent implementations in NumPy, bit for bit, and their papers' bounds."""

import math
import pathlib

import ml_dtypes
import numpy
import pytest
import thinwire
from philox import random_words

CHUNK = 32768
GOLDEN = pathlib.Path(__file__).parents[1] / "compressors" / "golden"


def chunks_of(elements):
    return [slice(first, min(first + CHUNK, elements)) for first in range(0, elements, CHUNK)]


def kept(density, elements):
    return math.ceil(density * elements)


def gradients_of(workers, elements=40_003):
    """Laplace, rounded, so that there are ties of either sign."""
    return [(numpy.random.default_rng(rank).laplace(size=elements) * 64).round().astype(numpy.float32) / 64 for rank in range(workers)]


def largest_places(values, count):
    """Of equal magnitudes the first ones."""
    return numpy.sort(numpy.argsort(-abs(values), kind="stable")[:count])


def as_bf16(values):
    largest = numpy.float32(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    with numpy.errstate(over="ignore"):
        return numpy.clip(values.astype(ml_dtypes.bfloat16).astype(numpy.float32), -largest, largest)


def topk_code(values, density, sent):
    """What is left of a chunk."""
    decoded = numpy.zeros_like(values)
    places = largest_places(values, kept(density, len(values)))
    decoded[places] = as_bf16(values[places]) if sent == "bf16" else values[places]
    return decoded


def topk_bytes(elements, density, sent):
    """Elias's code of the places: the lower bits of each, and a bit for each and for each step of what is above them."""
    total = 12 + (len(chunks_of(elements)) + 7) // 8
    for chunk in chunks_of(elements):
        n = chunk.stop - chunk.start
        k = kept(density, n)
        lower = int(math.log2(n // k))
        total += (2 if sent == "bf16" else 4) * k + -(-k * lower // 8) + -(-(k + ((n - 1) >> lower)) // 8)
    return total


@pytest.mark.parametrize("sent", ["fp32", "bf16"])
@pytest.mark.parametrize("density", [0.001, 0.01, 0.3, 1])
@pytest.mark.parametrize("workers", [1, 3])
def test_topk_of_every_worker(sent, density, workers):
    gradients = gradients_of(workers)
    mean, figures = thinwire.exchange(gradients, f"topk:density={density},values={sent}")
    expected = numpy.zeros_like(gradients[0])
    for gradient in gradients:
        for chunk in chunks_of(len(gradient)):
            expected[chunk] += numpy.float32(1 / workers) * topk_code(gradient[chunk], density, sent)
    numpy.testing.assert_array_equal(mean, expected)
    assert figures["payload_bytes"] == topk_bytes(len(mean), density, sent)
    assert figures["rounds"] == 1


@pytest.mark.parametrize("sent", ["fp32", "bf16"])
@pytest.mark.parametrize("density", [0.01, 0.3])
def test_owners_of_topk_send_the_largest_of_the_mean(sent, density):
    gradients = gradients_of(2)
    mean, figures = thinwire.exchange(gradients, f"topk:density={density},values={sent},reduce=scatter")
    for chunk in chunks_of(len(mean)):
        average = sum(numpy.float32(0.5) * topk_code(gradient[chunk], density, sent) for gradient in gradients)
        numpy.testing.assert_array_equal(mean[chunk], topk_code(average, density, sent))
    assert figures["rounds"] == 2


def test_values_that_bf16_would_round_to_infinity_stay_finite():
    largest = numpy.finfo(numpy.float32).max
    gradient = numpy.array([1, -largest, 0, largest], numpy.float32)
    mean, _ = thinwire.exchange([gradient], "topk:density=0.5,values=bf16")
    numpy.testing.assert_array_equal(mean, [0, -numpy.float32(float.fromhex("0x1.FEp127")), 0, numpy.float32(float.fromhex("0x1.FEp127"))])


@pytest.mark.parametrize("density", [0.003, 0.01, 0.3])
def test_topk_loses_no_more_than_the_paper_allows(density):
    _, figures = thinwire.exchange(gradients_of(1), f"topk:density={density}")
    assert 0 < figures["nmse_worker"] <= 1 - density


def drawn(elements, density, seed, first):
    """One place of each stratum, and the strata's lengths."""
    k = kept(density, elements)
    begins = numpy.arange(k + 1) * elements // k
    sizes = numpy.diff(begins)
    words = random_words(k, (first // 2, 0, 0, 0x7FFFFFFF), (seed, 0))
    return begins[:-1] + (words * sizes.astype(numpy.uint64) >> numpy.uint64(32)).astype(int), sizes


@pytest.mark.parametrize("feedback", ["on", "off"])
@pytest.mark.parametrize("density", [0.001, 0.01, 0.3, 1])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_randomk(feedback, density, workers):
    gradients = gradients_of(workers)
    mean, figures = thinwire.exchange(gradients, f"randomk:density={density},feedback={feedback}", seed=5)
    expected, sent = numpy.zeros_like(gradients[0]), 0
    for chunk in chunks_of(len(mean)):
        places, sizes = drawn(chunk.stop - chunk.start, density, 5, chunk.start)
        factors = sizes.astype(numpy.float32) if feedback == "off" else numpy.ones(len(places), numpy.float32)
        total = sum(gradient[chunk][places] for gradient in gradients)  # of 64ths: exact in any order
        divisor = 2 ** math.ceil(math.log2(workers))
        expected[chunk][places] = total / divisor * (factors * numpy.float32(divisor / workers))
        sent += len(places)
    numpy.testing.assert_array_equal(mean, expected)
    assert figures["payload_bytes"] == 4 * (sent + 1 + (len(chunks_of(len(mean))) if feedback == "on" else 0))
    assert figures["rounds"] == 1


def test_randomk_draws_each_place_as_often_as_any_other():
    """Chi-squared of 101 entries in 10 strata: as many degrees of freedom as there are entries, less the strata."""
    ones = numpy.ones(101, numpy.float32)
    drawn_by_seed = [thinwire.exchange([ones], "randomk:density=0.099,feedback=off", seed=seed)[0] for seed in range(4000)]
    times = numpy.count_nonzero(drawn_by_seed, 0)
    sizes = numpy.max(drawn_by_seed, 0)  # a stratum's length is what its entry is multiplied by
    assert sorted(numpy.unique(sizes)) == [10, 11]
    chi = ((times - 4000 / sizes) ** 2 / (4000 / sizes)).sum()
    assert abs(chi - 91) < 4 * math.sqrt(2 * 91)
    numpy.testing.assert_array_equal(numpy.count_nonzero(drawn_by_seed, 1), 10)


def decoded_golden(message, elements, density, sent):
    """A message's one-chunk parameters, read bit by bit as docs/wire_format.md says."""
    assert message[0] == 40 and message[1] == 1
    position, decoded = 12 + (len(elements) + 7) // 8, []
    for n in elements:
        k = kept(density, n)
        lower = int(math.log2(n // k))
        value_type = ml_dtypes.bfloat16 if sent == "bf16" else numpy.dtype("<f4")
        values = numpy.frombuffer(message, value_type, k, position).astype(numpy.float32)
        position += k * numpy.dtype(value_type).itemsize
        lower_bytes, upper_bytes = -(-k * lower // 8), -(-(k + ((n - 1) >> lower)) // 8)
        low = numpy.unpackbits(numpy.frombuffer(message, numpy.uint8, lower_bytes, position), bitorder="little")
        high = numpy.unpackbits(numpy.frombuffer(message, numpy.uint8, upper_bytes, position + lower_bytes), bitorder="little")
        position += lower_bytes + upper_bytes
        low = low[: k * lower].reshape(k, lower) @ (1 << numpy.arange(lower)) if lower else numpy.zeros(k, int)
        chunk = numpy.zeros(n, numpy.float32)
        if high.any():  # else it was left out
            chunk[((numpy.flatnonzero(high) - numpy.arange(k)) << lower) + low] = values
        decoded.append(chunk)
    assert position == len(message)
    return numpy.concatenate(decoded)


@pytest.mark.parametrize("name, density, sent", [("topk_v1", 0.1, "fp32"), ("topk_v1_bf16", 0.3, "bf16")])
def test_golden_messages_follow_the_wire_format(name, density, sent):
    both = (GOLDEN / f"{name}.bin").read_bytes()
    messages = [both[: len(both) // 2], both[len(both) // 2 :]]
    decoded = [decoded_golden(message, [360, 14], density, sent) for message in messages]
    mean = sum(numpy.float32(0.5) * values for values in decoded)
    numpy.testing.assert_array_equal(mean, numpy.fromfile(GOLDEN / f"{name}_mean.f32", "<f4"))


@pytest.mark.parametrize("name", ["topk", "randomk"])
@pytest.mark.parametrize("density", ["0", "1.5", "-1"])
def test_a_density_that_is_none_is_refused(name, density):
    with pytest.raises(ValueError, match=f"{name}.*density={density}.*from 0.001 to 1"):
        thinwire.exchange(gradients_of(1), f"{name}:density={density}")
