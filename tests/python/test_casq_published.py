"""CASQ against an independent implementation of what was published, and its error against what mathematics predicts."""

import functools

import casq_published
import numpy as np
import pytest
import thinwire

from bench.casq_prediction import CHUNK, decode, predicted_error


def sample(name, elements, seed=3):
    random = np.random.default_rng(seed)
    values = {
        "gaussian": lambda: random.normal(size=elements),
        "laplace": lambda: random.laplace(size=elements),
        "student": lambda: random.standard_t(3, size=elements),
    }[name]()
    return (1e-3 * values).astype(np.float32)


@functools.cache
def real_gradient():
    """One worker's, of a small network after some training."""
    from bench.gradient_error import record_gradients

    gradients, _ = record_gradients(seed=0, steps=30, workers=1, batch=32)
    return gradients[0]


@pytest.mark.parametrize("allocate", ["entropy", "density", "entropy-centre", "entropy-centre-density"])
@pytest.mark.parametrize("name", ["gaussian", "laplace", "student"])
@pytest.mark.parametrize("bits", [2, 3])
def test_the_published_system_decodes_alike(name, bits, allocate):
    values = sample(name, 3000)
    spec = f"bits={bits},signs=apart,tail=0.05,table=0.05,assign=hash,allocate={allocate}"
    decoded, figures = decode(values, spec)
    reference = casq_published.encode(values, bits, 0.05, allocate)
    np.testing.assert_allclose(decoded, reference.decoded, rtol=2e-6)
    clusters = 2**bits
    assert figures["payload_bytes"] == 13 + 2 * clusters + 4 * reference.buckets.sum() + -(-3000 * bits // 8)


def test_thresholds_are_near_those_of_the_values_themselves():
    """The histogram's bins are narrow enough: percentiles and means of the values say the same to 1 %."""
    values = sample("laplace", 30000)
    thresholds = casq_published.thresholds_of(values, 2, 0.05)
    for side, threshold in ((values[values > 0], thresholds[2]), (-values[values < 0], -thresholds[0])):
        begin = np.percentile(side, 95)
        assert threshold == pytest.approx((side[side < begin].mean() + begin) / 2, rel=0.01)


# --- predicted error


@pytest.mark.parametrize("assign", ["rank", "hash"])
@pytest.mark.parametrize("table", [0.01, 0.1])
@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("name", ["gaussian", "laplace", "student", "real", "shuffled"])
def test_error_is_as_predicted(name, bits, table, assign):
    values = sample(name, 100_000) if name in ("gaussian", "laplace", "student") else real_gradient()
    if name == "shuffled":
        values = np.random.default_rng(5).permutation(values)
    _, figures = decode(values, f"bits={bits},table={table},assign={assign}")
    predicted = predicted_error(values, bits, table, assign, in_order=name == "real")
    assert figures["nmse_worker"] == pytest.approx(predicted, rel=0.1)


def test_a_table_as_long_as_the_gradient_is_exact_by_rank():
    values = sample("laplace", 5000)
    decoded, figures = decode(values, "bits=2,table=1")
    np.testing.assert_allclose(decoded, values, rtol=1e-6)
    assert figures["bits_per_element"] > 34


# --- 16 bits, block scales, budget


def test_bits_follow_the_formula():
    elements, bits, table = 70_000, 3, 0.02
    _, figures = decode(sample("laplace", elements), f"bits={bits},table={table},precision=bf16,scope=block")
    expected = 13
    for size in (CHUNK, CHUNK, elements - 2 * CHUNK):
        buckets = int(table * size)
        expected += 2 * 2**bits + 2 * (2**bits + buckets) + 2 * -(-size // 512) + -(-size * bits // 8)
    assert figures["payload_bytes"] == expected


def test_sixteen_bit_means_cost_next_to_nothing():
    values = sample("laplace", 50_000)
    exact, rounded = (decode(values, f"bits=3,precision={p}")[1]["nmse_worker"] for p in ("fp32", "bf16"))
    assert rounded == pytest.approx(exact, rel=1e-3)


def test_block_scales_serve_values_whose_scale_changes():
    scales = np.repeat(np.random.default_rng(1).lognormal(sigma=1.5, size=200), 512)
    values = (sample("gaussian", len(scales)) * scales).astype(np.float32)
    whole, blocks = (decode(values, f"bits=2,scope={scope}")[1]["nmse_worker"] for scope in ("parameter", "block"))
    assert whole > 0.2
    assert blocks < 0.13  # a Gaussian's least error is .1175


def split_layout(sizes):
    return [{"name": f"p{i}", "shape": [size]} for i, size in enumerate(sizes)]


def test_a_budget_goes_where_the_energy_is():
    sizes, scales = [40_000, 40_000, 40_000], [1.0, 0.1, 0.01]
    values = np.concatenate([scale * sample("laplace", size, seed) for seed, (size, scale) in enumerate(zip(sizes, scales))])
    gradients = [values, values]
    results = {
        spec: thinwire.exchange(gradients, f"casq:feedback=off,{spec}", layout=split_layout(sizes))[1]
        for spec in ("bits=2", "budget=2.01", "bits=4", "budget=4.02")
    }
    assert results["budget=2.01"]["bits_per_element"] <= 2.01
    assert results["budget=4.02"]["bits_per_element"] <= 4.02
    assert results["budget=2.01"]["nmse_worker"] < 0.5 * results["bits=2"]["nmse_worker"]
    assert results["budget=4.02"]["nmse_worker"] < 0.5 * results["bits=4"]["nmse_worker"]


def test_a_budget_is_spent_as_trying_everything_would():
    """Three parameters, all 8^3 choices of bits by rules: none within the budget has less error by more than a tenth."""
    sizes = [30_000, 8_000, 20_000]
    values = np.concatenate([scale * sample(name, size) for name, size, scale in
                             zip(("gaussian", "student", "laplace"), sizes, (1.0, 3.0, 0.5))])  # fmt: skip
    alone = []
    for part in np.split(values, np.cumsum(sizes)[:-1]):
        figures = [decode(part, f"bits={bits}")[1] for bits in range(1, 9)]
        energy = float((part.astype(np.float64) ** 2).sum())
        alone.append([(8 * (f["payload_bytes"] - 13), f["nmse_worker"] * energy) for f in figures])
    budget = 3.1
    best = min(
        sum(error for _, error in choice)
        for choice in ((a, b, c) for a in alone[0] for b in alone[1] for c in alone[2])
        if sum(cost for cost, _ in choice) <= budget * sum(sizes)
    )
    _, figures = thinwire.exchange([values], f"casq:feedback=off,budget={budget}", layout=split_layout(sizes))
    assert figures["nmse_worker"] * float((values.astype(np.float64) ** 2).sum()) <= 1.1 * best
