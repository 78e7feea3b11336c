"""Sparsifiers against independent implementations in NumPy, and their papers' bounds."""

import math
import pathlib

import ml_dtypes
import numpy
import pytest
import thinwire
from philox import random_words, rounding_words

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


def entries_bytes(count, elements, sent):
    """Values and places, as topk has them."""
    if count == 0:
        return 0
    lower = int(math.log2(elements // count))
    return (2 if sent == "bf16" else 4) * count + -(-count * lower // 8) + -(-(count + ((elements - 1) >> lower)) // 8)


def varied_payload(codes, usual):
    """What one worker sends of a message of codes of any length: as much as is foreseen, its announcement with it, and the rest of a longer one."""
    head = 12 + (len(codes) + 7) // 8 + 4 * len(codes)
    announcement = 8
    length, first = head + sum(codes), max(sum(usual) - announcement, head)
    return announcement + max(first, length), 1 if length <= first else 2


def same_figures(figures, codes, usual):
    payload, rounds = varied_payload(codes, usual)
    assert figures["payload_bytes"] == payload
    assert figures["rounds"] == rounds


def spread_gradient(name, elements=40_003):
    random = numpy.random.default_rng(7)
    values = random.laplace(size=elements)
    if name == "heavy":
        values = values**5
    if name == "sparse":
        values *= random.random(elements) < 0.002
    if name == "constant":
        values = numpy.full(elements, 0.75)
    if name == "zeros":
        values = numpy.zeros(elements)
    return (values * {"tiny": 1e-42, "huge": 1e37}.get(name, 1)).astype(numpy.float32)


CONTENTS = ["laplace", "heavy", "sparse", "constant", "zeros", "tiny", "huge"]


@pytest.mark.parametrize("sent", ["fp32", "bf16"])
@pytest.mark.parametrize("least", [0, 0.5, 3, 50])
@pytest.mark.parametrize("name", CONTENTS)
def test_threshold(name, least, sent):
    values = spread_gradient(name)
    mean, figures = thinwire.exchange([values], f"threshold:least={least},values={sent}")
    kept_values = as_bf16(values) if sent == "bf16" else values
    numpy.testing.assert_array_equal(mean, numpy.where(abs(values) >= least, kept_values, 0))
    codes, usual = [], []
    for chunk in chunks_of(len(values)):
        n = chunk.stop - chunk.start
        count = numpy.count_nonzero(abs(values[chunk]) >= least) if values[chunk].any() else 0
        codes.append(2 + entries_bytes(count, n, sent) if count else 0)
        usual.append(2 + entries_bytes(kept(0.01, n), n, sent))
    same_figures(figures, codes, usual)


def fitted(values, wanted):
    """SIDCo's threshold, in double precision, of magnitudes; where they are as it wants, so that none is next to it."""
    magnitudes = abs(values.astype(numpy.float64))
    threshold = 0.0
    for _ in range(8):
        beyond = magnitudes[magnitudes >= threshold] - threshold
        if len(beyond) <= wanted:
            break
        share = max(0.25, wanted / len(beyond))
        threshold = min(threshold + beyond.mean() * math.log(1 / share), magnitudes.max())
        if share > 0.25:
            break
    return threshold


@pytest.mark.parametrize("sent", ["fp32", "bf16"])
@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 1])
@pytest.mark.parametrize("name", CONTENTS)
def test_sidco(name, density, sent):
    values = spread_gradient(name)
    if name == "tiny" and sent == "bf16":
        values *= numpy.float32(1e4)  # the least bfloat16 is 9e-41
    mean, figures = thinwire.exchange([values], f"sidco:density={density},values={sent}")
    kept_values = as_bf16(values) if sent == "bf16" else values
    codes, usual, fits = [], [], 0
    for chunk in chunks_of(len(values)):
        own, n = values[chunk], chunk.stop - chunk.start
        wanted = kept(density, n)
        threshold = fitted(own, wanted)
        # Which of them are sent tells what the threshold was, to the rounding of sums of floats.
        places = numpy.flatnonzero(abs(own) >= abs(own[mean[chunk] != 0]).min(initial=numpy.inf))
        rounding = 1e-5 if name != "tiny" else 0.02  # denormals have few digits
        surely, perhaps = (numpy.count_nonzero(abs(own) >= threshold * factor) for factor in (1 + rounding, 1 - rounding))
        if wanted // 2 <= surely and perhaps <= 2 * wanted and threshold > 0:
            assert surely <= len(places) <= perhaps
            fits += 1
        else:
            places = largest_places(own, wanted)
            places = places[own[places] != 0]
        expected = numpy.zeros_like(own)
        expected[places] = kept_values[chunk][places]
        numpy.testing.assert_array_equal(mean[chunk], expected)
        codes.append(2 + entries_bytes(len(places), n, sent) if len(places) else 0)
        usual.append(2 + entries_bytes(kept(min(1, 1.25 * density), n), n, sent))
    if name != "sparse":
        assert fits == (0 if name in ("constant", "zeros") or density == 1 else 2)
    same_figures(figures, codes, usual)


def wangni_unit(values, wanted):
    """1 / lambda of algorithm 3, in double precision; 0 if all that is not 0 is sent."""
    magnitudes = abs(values.astype(numpy.float64))
    if numpy.count_nonzero(magnitudes) <= wanted:
        return 0.0
    left, exact = magnitudes, 0
    while True:
        unit = left.sum() / (wanted - exact)
        left = magnitudes[magnitudes < unit]
        if len(magnitudes) - len(left) == exact:
            return unit
        exact = len(magnitudes) - len(left)


@pytest.mark.parametrize("density", [0.001, 0.01, 0.3, 1])
@pytest.mark.parametrize("name", CONTENTS)
def test_wangni(name, density):
    values = spread_gradient(name) / numpy.float32(1000 if name == "huge" else 1)
    mean, figures = thinwire.exchange([values], f"wangni:density={density}", seed=5)
    codes, usual = [], []
    for chunk in chunks_of(len(values)):
        own, n = values[chunk], chunk.stop - chunk.start
        wanted = kept(density, n)
        unit = wangni_unit(own, wanted)
        exact = (abs(own) >= unit) & (own != 0)
        # -1, 0 or 1: the next level where a random number is below the share of the way from the one below.
        share = own.astype(numpy.float64) / max(unit, 1e-45)
        random = (rounding_words(n, (chunk.start // 2, 0, 0, 0), (5, 0)) >> numpy.uint64(8)) / 2.0**24
        drawn = ~exact & numpy.where(share < 0, random >= share + 1, random < share)
        if name == "tiny":  # units of denormals have few digits: next to the share a draw may fall to the other side
            other = (mean[chunk] != 0) != (exact | drawn)
            assert numpy.count_nonzero(other) < 1e-3 * n
            assert (abs(random[other] - share[other] % 1) < 0.01).all()
            drawn ^= other
        rounding = 1e-5 if name != "tiny" else 0.02
        numpy.testing.assert_allclose(mean[chunk], numpy.where(exact, own, numpy.where(drawn, numpy.sign(own) * unit, 0)), rtol=rounding)
        exacts, draws = numpy.count_nonzero(exact), numpy.count_nonzero(drawn)
        places = entries_bytes(draws, n, "fp32") - 4 * draws
        codes.append(8 + entries_bytes(exacts, n, "fp32") + places + -(-draws // 8) if exacts + draws else 0)
        usual.append(8 + entries_bytes(wanted // 4, n, "fp32") + entries_bytes(wanted, n, "fp32") - 4 * wanted + -(-wanted // 8))
    if name == "laplace" and density < 1:
        assert abs(numpy.count_nonzero(mean) - density * len(mean)) < 4 * math.sqrt(density * len(mean))
    same_figures(figures, codes, usual)


def runs_of(elements):
    return [slice(first, min(first + 4096, elements)) for first in range(0, elements, 4096)]


def upper_parts(elements):
    """How many entries of a run are sent, and how many places their upper parts can be at."""
    k = -(-elements // 64)
    return k, k + (elements - 1) // 16


def sparseloco_bits(elements):
    k, all_ = upper_parts(elements)
    return 32 + 6 * k + math.comb(all_, k).bit_length()


def sparseloco_run(values):
    k, _ = upper_parts(len(values))
    places = largest_places(values, k)
    magnitudes = abs(values[places].astype(numpy.float64))
    larger = magnitudes > magnitudes.mean()
    low = magnitudes[~larger].mean()
    high = magnitudes[larger].mean() if larger.any() else low
    low, high = as_bf16(numpy.array([low, high]).astype(numpy.float32))
    decoded = numpy.zeros_like(values)
    decoded[places] = numpy.where(values[places] < 0, -1, 1) * numpy.where(larger, high, low)
    return decoded


@pytest.mark.parametrize("elements", [1, 17, 64, 65, 4000, 4097, 40_003])
@pytest.mark.parametrize("name", CONTENTS)
def test_sparseloco(name, elements):
    values = spread_gradient(name, elements)
    mean, figures = thinwire.exchange([values], "sparseloco")
    numpy.testing.assert_array_equal(mean, numpy.concatenate([sparseloco_run(values[run]) for run in runs_of(elements)]))
    chunks = [chunk.stop - chunk.start for chunk in chunks_of(elements)]
    codes = [-(-sum(sparseloco_bits(run.stop - run.start) for run in runs_of(n)) // 8) for n in chunks]
    assert figures["payload_bytes"] == 12 + (len(chunks) + 7) // 8 + sum(codes)


def test_places_of_sparseloco_are_near_what_no_code_can_do_without():
    bits = sparseloco_bits(4096) - 32 - 2 * 64
    assert math.log2(math.comb(4096, 64)) / 64 < bits / 64 < 7.55


def cosines(values):
    """The orthonormal DCT-II of runs of 64; what is behind the last one as it is."""
    i = numpy.arange(64)
    basis = numpy.cos(numpy.pi / 64 * (i[:, None] + 0.5) * i) * numpy.sqrt(numpy.where(i == 0, 1, 2) / 64)
    whole = len(values) // 64 * 64
    return numpy.concatenate([(values[:whole].reshape(-1, 64) @ basis).ravel(), values[whole:]])


@pytest.mark.parametrize("sent", ["fp32", "bf16"])
@pytest.mark.parametrize("density", [0.001, 0.1, 1])
@pytest.mark.parametrize("elements", [1, 63, 64, 4097, 40_003])
@pytest.mark.parametrize("name", ["laplace", "heavy", "constant", "zeros", "tiny", "large"])
def test_demo(name, elements, density, sent):
    values = spread_gradient(name, elements) * numpy.float32(1e33 if name == "large" else 1)
    if name == "tiny" and sent == "bf16":
        values *= numpy.float32(1e4)  # the least bfloat16 is 9e-41
    mean, figures = thinwire.exchange([values], f"demo:density={density},values={sent}")
    rounding = (0.01 if name == "tiny" else 1e-5) * abs(values).max() + (2**-8 * abs(values).max() * 8 if sent == "bf16" else 0)
    for chunk in chunks_of(elements):
        n = chunk.stop - chunk.start
        all_, found = cosines(values[chunk].astype(numpy.float64)), cosines(mean[chunk].astype(numpy.float64))
        is_sent = abs(found) > rounding
        numpy.testing.assert_allclose(found[is_sent], all_[is_sent], rtol=2**-7 if sent == "bf16" else 1e-4, atol=rounding)
        order = numpy.sort(abs(all_))[::-1]
        k = kept(density, n)
        assert numpy.count_nonzero(is_sent) <= k
        # All that must be among the k largest are there, whatever rounding makes of the others.
        assert is_sent[abs(all_) > order[min(k, n - 1)] * (k < n) + 2 * rounding].all()
    assert figures["payload_bytes"] == topk_bytes(elements, density, sent)


def test_demo_loses_no_more_than_topk_of_coefficients():
    values = numpy.cos(numpy.arange(40_000) * 0.001).astype(numpy.float32)  # slow: few coefficients have nearly everything
    _, demo = thinwire.exchange([values], "demo:density=0.02")
    _, topk = thinwire.exchange([values], "topk:density=0.02")
    assert demo["nmse_worker"] < 0.01 < 0.9 < topk["nmse_worker"]
