"""`thinwire inspect` against NumPy."""

import json
import re

import numpy as np
import pytest
from test_tool import WIDEST_LINE, fail, save, succeed, succeed_in_json, write  # noqa: F401

LAYOUT = [{"name": "conv <1>", "shape": [40, 5, 10], "offset": 0}, {"name": "bias", "shape": [7], "offset": 2000},
          {"name": "embedding", "shape": [300, 8], "offset": 2007}]  # fmt: skip


@pytest.fixture
def gradient():
    random = np.random.default_rng(2)
    matrix = random.normal(size=(40, 3)) @ random.normal(size=(3, 50))
    rows = random.laplace(size=(300, 8)) * (random.random((300, 1)) < 0.1)
    return np.concatenate([matrix.ravel(), random.normal(size=7), 1e-3 * rows.ravel()]).astype(np.float32)


@pytest.fixture
def files(save, write, gradient):  # noqa: F811
    return "--input", save(gradient), "--layout", write("layers.json", json.dumps(LAYOUT))


def test_figures_are_numpys(files, gradient):
    figures = succeed_in_json("inspect", *files)
    assert [row["name"] for row in figures["parameters"]] == ["conv <1>", "bias", "embedding"]
    for row in figures["parameters"]:
        first = next(entry["offset"] for entry in LAYOUT if entry["name"] == row["name"])
        values = gradient[first : first + row["elements"]].astype(np.float64)
        squares = np.sort(values**2)[::-1]
        assert row["mean_magnitude"] == pytest.approx(np.abs(values).mean())
        assert row["rms"] == pytest.approx(np.sqrt(squares.mean()))
        assert row["largest"] == pytest.approx(np.abs(values).max())
        assert row["kurtosis"] == pytest.approx((values**4).mean() / squares.mean() ** 2)
        assert row["top_percent"] == pytest.approx(squares[: -(-len(squares) // 100)].sum() / squares.sum())
        assert row["zeros"] == pytest.approx((values == 0).mean())
        counted = sum(row["histogram"]["negative"]) + sum(row["histogram"]["positive"])
        assert counted == np.count_nonzero(values)
        assert sum(row["histogram"]["negative"]) == (values < 0).sum()
    embedding = gradient[2007:].reshape(300, 8)
    assert figures["parameters"][2]["zero_rows"] == pytest.approx((embedding == 0).all(axis=1).mean())
    assert figures["energy"] == pytest.approx(float((gradient.astype(np.float64) ** 2).sum()))


def test_histogram_places_values_by_their_magnitude(save):  # noqa: F811
    values = np.array([[1, 1, 1, 1, 1, 1, 1, -3.9]], np.float32)
    histogram = succeed_in_json("inspect", "--input", save(values))["histogram"]
    bin_of = lambda x: int(np.floor(2 * (np.log2(x / np.abs(values).mean()) + 12)))  # noqa: E731
    assert histogram["positive"][bin_of(1)] == 7
    assert histogram["negative"][bin_of(3.9)] == 1


def test_spectrum_is_the_singular_values(files, gradient):
    figures = succeed_in_json("inspect", *files)
    singular = np.linalg.svd(gradient[:2000].reshape(40, 50).astype(np.float64), compute_uv=False) ** 2
    np.testing.assert_allclose(figures["parameters"][0]["spectrum"], singular / singular.sum(), atol=1e-6)
    assert figures["parameters"][1]["spectrum"] == []
    assert len(figures["parameters"][2]["spectrum"]) == 96  # of 300 rows


def test_errors_are_those_of_an_exchange(files, save, write):  # noqa: F811
    figures = succeed_in_json("inspect", *files)
    gradient = np.load(files[1]).reshape(1, -1)
    for bits in (1, 2, 3, 4):
        exchanged = succeed_in_json("exchange", "--compressor", f"casq:feedback=off,bits={bits}", "--input",
                                    save(gradient, "one.npy"), "--layout", files[3])  # fmt: skip
        assert figures["casq_error"][bits - 1] == pytest.approx(exchanged["nmse_worker"], rel=1e-5)
        assert figures["casq_bits"][bits - 1] == exchanged["bits_per_element"]
        assert all(len(row["casq_centres"][bits - 1]) <= 2**bits for row in figures["parameters"])
    assert [row["rate"] for row in figures["casq_rates"]] == [0.05, 0.1, 0.25, 0.5, 1, 2, 3]
    assert all(row["bits"] == pytest.approx(row["rate"], rel=0.25, abs=0.1) for row in figures["casq_rates"])
    rate_errors = [row["error"] for row in figures["casq_rates"]]
    assert rate_errors == sorted(rate_errors, reverse=True) and rate_errors[4] < figures["casq_error"][0]


def test_the_table_fits(files):
    text = succeed("inspect", *files)
    assert max(map(len, text.splitlines())) <= WIDEST_LINE
    assert "embedding" in text and "casq:2" in text


def test_the_page_holds_all_it_needs(files, tmp_path):
    page = tmp_path / "gradient.html"
    succeed("inspect", *files, "--html", page)
    text = page.read_text()
    assert "conv &lt;1&gt;" in text and "conv <1>" not in text
    assert text.count("<svg") == 1 + 3 + 2  # the whole, three histograms, two spectra
    assert not re.search(r"(src|href)=|https?:", text)
    assert "nan" not in text.replace("finance", "") and "inf" not in text


def test_steps_and_workers_are_chosen(save):  # noqa: F811
    steps = np.arange(1, 5, dtype=np.float32).reshape(2, 2, 1) * np.ones(10, np.float32)
    path = save(steps)
    assert succeed_in_json("inspect", "--input", path)["largest"] == 3
    assert succeed_in_json("inspect", "--input", path, "--step", 0, "--worker", 1)["largest"] == 2
    assert "no step 2" in fail(1, "inspect", "--input", path, "--step", 2)
    assert "worker 5" in fail(1, "inspect", "--input", path, "--worker", 5)


@pytest.mark.parametrize("array, mentions", [
    (np.zeros((2, 0), np.float32), "shape (2, 0)"), (np.float32([1, np.nan]), "element 1"),
    (np.float32([np.inf]), "element 0"), (np.zeros((1, 1, 1, 1), np.float32), "shape"),
])  # fmt: skip
def test_what_cannot_be_inspected_is_refused(save, array, mentions):  # noqa: F811
    assert mentions in fail(1, "inspect", "--input", save(array))


def test_zeros_have_no_errors(save):  # noqa: F811
    figures = succeed_in_json("inspect", "--input", save(np.zeros(100, np.float32)))
    assert figures["casq_error"] == [None] * 4
    assert figures["zeros"] == 1


def test_help_teaches_by_example():
    text = succeed("inspect", "--help")
    assert "Examples:" in text
    assert max(map(len, text.splitlines())) <= WIDEST_LINE
