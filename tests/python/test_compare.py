"""`thinwire compare`: what it says of every compressor is what an exchange says, and its bounds are NumPy's."""

import json
import re

import numpy as np
import pytest
import thinwire
from test_tool import ROOT, WIDEST_LINE, fail, save, succeed, succeed_in_json, write  # noqa: F401

SAMPLES = ROOT / "examples" / "gradients"
BLOCK = 128


@pytest.fixture(scope="module")
def gradient():
    """Blocks of 128 entries of two scales; one parameter ends in half a block."""
    random = np.random.default_rng(5)
    scales = np.repeat(10.0 ** random.uniform(-2, 0, 40), BLOCK)[: 39 * BLOCK + 64]
    return (random.laplace(size=scales.size) * scales).astype(np.float32)


def curves(result):
    return {curve["compressor"]: curve["points"] for curve in result["curves"]}


def test_every_point_is_an_exchange(save, gradient):  # noqa: F811
    result = succeed_in_json("compare", "--input", save(gradient), "--bits", "0.5,2,8")
    assert result["elements"] == gradient.size and result["bits"] == [0.5, 2, 8]
    energy = float((gradient.astype(np.float64) ** 2).sum())
    points = [point for points in curves(result).values() for point in points]
    assert len(points) > 40
    for point in points:
        mean, figures = thinwire.exchange([gradient], point["spec"])
        assert point["bits"] == pytest.approx(figures["bits_per_element"]), point["spec"]
        assert point["error"] == pytest.approx(((mean.astype(np.float64) - gradient) ** 2).sum() / energy, abs=1e-12), point["spec"]


def test_every_lossy_compressor_is_there(save, gradient):  # noqa: F811
    result = succeed_in_json("compare", "--input", save(gradient))
    rows = succeed_in_json("compressors")
    wanted = {row["name"] for row in rows if row["sizes"] and not row["lossless"]}
    assert {row["name"] for row in rows if not row["lossless"]} - wanted == {"dgc", "ef21", "fetchsgd", "s2", "signsgd", "signum", "threshold"}
    assert {name.partition(":")[0] for name in curves(result)} | set(result["left_out"]) == wanted
    assert {"gradiveq", "powersgd"} <= set(result["left_out"])
    assert all(points for points in curves(result).values())


def test_real_numbers_are_found_that_take_the_bits(save, gradient):  # noqa: F811
    wanted = [0.25, 0.5, 1, 3]
    result = curves(succeed_in_json("compare", "--input", save(gradient), "--bits", ",".join(map(str, wanted))))
    for name in ("topk:density", "randomk:density", "casq:rate"):
        got = [point["bits"] for point in result[name]]
        assert got == sorted(got)
        for bits in wanted:
            assert min(abs(bits - each) for each in got) < 0.05 * bits, (name, bits, got)


def test_bounds(save, write, gradient):  # noqa: F811
    layout = [{"name": "a", "shape": [1000], "offset": 0}, {"name": "b", "shape": [gradient.size - 1000], "offset": 1000}]
    result = succeed_in_json("compare", "--input", save(gradient), "--layout", write("l.json", json.dumps(layout)), "--bits", "0.5,1,2,4")
    assert result["bounds"]["gaussian"] == pytest.approx([2.0 ** (-2 * bits) for bits in (0.5, 1, 2, 4)])
    blocks = [part[i : i + BLOCK].astype(np.float64) for part in np.split(gradient, [1000]) for i in range(0, len(part), BLOCK)]
    variances = np.concatenate([np.full(len(block), (block**2).mean()) for block in blocks])
    for bits, error in zip((0.5, 1, 2, 4), result["bounds"]["blocks"]):
        level = error_level(variances, bits)
        assert error == pytest.approx(np.minimum(variances, level).sum() / variances.sum(), rel=1e-6)
    # No curve of one scale for all lies below a bound that knows less than it is told.
    assert all(a < b for a, b in zip(result["bounds"]["blocks"], result["bounds"]["gaussian"]))


def error_level(variances, bits):
    """By the sorted variances: with the n largest coded, the level follows from their logarithms' mean."""
    logs = np.log2(np.sort(variances[variances > 0])[::-1])
    counts = np.arange(1, len(logs) + 1)
    levels = 2 ** (np.cumsum(logs) / counts - 2 * bits * len(variances) / counts)
    following = np.append(2 ** logs[1:], 0)
    return levels[np.argmax((levels < 2**logs * (1 + 1e-12)) & (levels >= following))]


def test_learners_are_given_the_earlier_steps(save):  # noqa: F811
    random = np.random.default_rng(6)
    matrix = random.normal(size=(64, 2)) @ random.normal(size=(2, 96))
    steps = np.stack([matrix + 0.01 * random.normal(size=matrix.shape) for _ in range(4)]).reshape(4, 1, -1).astype(np.float32)
    layout = save(steps).with_name("layout.json")
    layout.write_text(json.dumps([{"name": "w", "shape": [64, 96], "offset": 0}]))
    arguments = "compare", "--input", save(steps), "--layout", layout
    last, first = succeed_in_json(*arguments), succeed_in_json(*arguments, "--step", "0")
    assert last["left_out"] == [] and "powersgd" in first["left_out"]
    rank_2 = next(point for point in curves(last)["powersgd:rank"] if "rank=2" in point["spec"])
    assert rank_2["error"] < 1e-3 and "feedback=off" in rank_2["spec"]
    assert rank_2["bits"] == pytest.approx(32 * 2 * (1 / 64 + 1 / 96), rel=0.01)


@pytest.mark.parametrize("name", ["cnn", "lstm"])
def test_the_samples_and_their_table(name):
    files = "--input", SAMPLES / f"{name}.npy", "--layout", SAMPLES / f"{name}.json"
    text = succeed("compare", *files)
    assert max(map(len, text.splitlines())) <= WIDEST_LINE
    heading = text.splitlines()[0].split()
    assert heading[-8:] == ["0.1", "0.25", "0.5", "1", "2", "3", "4", "8"]
    assert text.count("*") >= 8 and "gradiveq" in text and "Left out" not in text
    result = succeed_in_json("compare", *files)
    errors = {round(point["bits"], 1): point["error"] for point in curves(result)["casq:rate"]}
    blocks = dict(zip(result["bits"], result["bounds"]["blocks"]))
    for bits in (1, 2, 3, 4):
        assert blocks[bits] < errors[bits] < 2 * blocks[bits]


def test_page(save, gradient, tmp_path):  # noqa: F811
    page = tmp_path / "page.html"
    succeed("compare", "--input", save(gradient, "a<b>.npy"), "--html", page)
    text = page.read_text()
    assert "a&lt;b&gt;.npy" in text and "<b>" not in text
    assert text.count("<polyline") > 15 and "casq:rate" in text
    assert not re.search(r"(src|href)=|https?://|\bnan\b|\binf\b", text)


@pytest.mark.parametrize("bits", ["0", "1,1", "2,1", "-1", "33", "1,2,3,4,5,6,7,8,9", "x"])
def test_bits_are_checked(save, gradient, bits):  # noqa: F811
    assert "--bits" in fail(2, "compare", "--input", save(gradient), "--bits", bits)


def test_zeros_are_refused(save):  # noqa: F811
    assert "zeros" in fail(1, "compare", "--input", save(np.zeros(100, np.float32)))
