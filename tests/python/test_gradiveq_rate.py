"""gradiveq:ratio=1/casq:rate=R: every principal component is kept, and the coder decides. Beside components that NumPy finds in double precision."""

import json

import numpy as np
import pytest
from test_tool import save, succeed_in_json, write  # noqa: F401

LEARN, USE, WORKERS = 20, 6, 3
OUT, IN, KERNEL = 48, 32, 9
CYCLE = f"learn={LEARN},lag=0,use={USE},smallest=0,feedback=off"


def gradients(seed, spread):
    """[step, worker, entry]: slices along the input channels, of components whose deviations fall as 1/i, and filters of other scales."""
    random = np.random.default_rng(seed)
    directions = np.linalg.qr(random.standard_normal((IN, IN)))[0]
    filters = np.exp(spread * random.standard_normal(OUT))[:, None, None]
    y = random.standard_normal((LEARN + USE, WORKERS, OUT, KERNEL, IN)) / np.arange(1, IN + 1) * filters
    return np.ascontiguousarray((y @ directions).swapaxes(-1, -2)).reshape(LEARN + USE, WORKERS, -1).astype(np.float32)


def slices_of(gradients):
    """[..., slice, entry of it]"""
    return gradients.reshape(*gradients.shape[:-1], OUT, IN, KERNEL).swapaxes(-1, -2).reshape(*gradients.shape[:-1], OUT * KERNEL, IN).astype(np.float64)


def gradient_of(slices):
    return slices.reshape(*slices.shape[:-2], OUT, KERNEL, IN).swapaxes(-1, -2).reshape(*slices.shape[:-2], -1)


def components_of(means):
    """Of the mean gradients: the slices' mean, and rows of components by descending variance."""
    slices = slices_of(means).reshape(-1, IN)
    mean = slices.mean(0)
    _, components = np.linalg.eigh((slices - mean).T @ (slices - mean))
    return mean, components.T[::-1]


@pytest.fixture
def averaged(save, write, tmp_path):  # noqa: F811
    def averaged(spec, inputs, layout=None):
        """The decoded means, and what the tool says of each step."""
        options = ["--layout", write("layout.json", json.dumps(layout))] if layout else []
        output = tmp_path / "mean.npy"
        result = succeed_in_json("exchange", "--compressor", spec, "--input", save(inputs), *options, "--output", output)
        return np.load(output).astype(np.float64), result["per_step"]

    return averaged


def by_component(y):
    return y.swapaxes(-1, -2)


def from_components(y):
    return y.reshape(USE, IN, OUT * KERNEL).swapaxes(-1, -2)


def by_channel(y):
    """Within each channel component by component."""
    return y.reshape(*y.shape[:-2], OUT, KERNEL, IN).swapaxes(-1, -2)


def from_channels(y):
    return y.reshape(USE, OUT, IN, KERNEL).swapaxes(-1, -2).reshape(USE, OUT * KERNEL, IN)


# Coefficients are coded in the order in which neighbours are more alike.
@pytest.mark.parametrize("rate", [0.25, 1])
@pytest.mark.parametrize("spread", [0.1, 1, 2])
def test_the_error_is_that_of_coded_components(averaged, spread, rate):
    inputs = gradients(3, spread)
    exact = inputs.astype(np.float64).mean(1)
    layout = [{"name": "conv", "shape": [OUT, IN, 3, 3], "offset": 0}]
    decoded, steps = averaged(f"gradiveq:ratio=1,{CYCLE}/casq:rate={rate},feedback=off", inputs, layout)
    np.testing.assert_allclose(decoded[:LEARN], exact[:LEARN], rtol=1e-5, atol=1e-6)  # without feedback as they are

    mean, components = components_of(exact[:LEARN])
    y = (slices_of(inputs[LEARN:]) - mean) @ components.T

    def error(of):
        return ((of - exact[LEARN:]) ** 2).sum() / (exact[LEARN:] ** 2).sum()

    def coded(order, back):
        sent, _ = averaged(f"casq:rate={rate},feedback=off", order(y).reshape(USE, WORKERS, -1).astype(np.float32))
        return gradient_of(back(sent) @ components + mean)

    ways = [coded(by_component, from_components), coded(by_channel, from_channels)]
    expected = ways[spread == 2]
    assert error(expected) < 1.02 * min(map(error, ways))
    assert error(decoded[LEARN:]) == pytest.approx(error(expected), rel=0.05)
    assert ((decoded[LEARN:] - expected) ** 2).sum() < 0.1 * ((expected - exact[LEARN:]) ** 2).sum()  # not only as large: the same
    bits = [step["bits_per_element"] for step in steps[LEARN:]]
    assert np.mean(bits) == pytest.approx(rate, rel=0.1)

    entries, _ = averaged(f"casq:rate={rate},feedback=off", inputs)
    assert error(decoded[LEARN:]) < 0.5 * error(entries[LEARN:])
