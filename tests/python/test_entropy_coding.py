"""coding=entropy, elias: means are those of codes of fixed length, and bits those of the numbers' empirical entropy or of Elias's codewords."""

from pathlib import Path

import numpy
import pytest
import thinwire

GRADIENTS = Path(__file__).parents[2] / "examples/gradients"
CHUNK = 32768
ROWS = [row["name"] for row in thinwire.compressors() if any(p["name"] == "coding" for p in row["parameters"])]
CODINGS = [*((row, "entropy") for row in ROWS), ("qsgd", "elias")]


def test_rows_of_levels_have_it():
    assert {"alq", "dorefa", "eden", "fp8", "int", "mxfp4", "natural", "nuqsgd", "qsgd", "terngrad", "zipml"} <= set(ROWS)


def content(name, elements, seed=3):
    random = numpy.random.default_rng(seed)
    values = random.laplace(size=elements)
    if name == "sparse":
        values[random.random(elements) < 0.97] = 0
    if name == "constant":
        values[:] = -2.5
    if name == "zeros":
        values[:] = 0
    if name == "outlier":
        values[elements // 2] = 1e6
    return values.astype(numpy.float32)


@pytest.mark.parametrize("reduce", ["gather", "scatter"])
@pytest.mark.parametrize("row, coding", CODINGS)
def test_means_are_those_of_fixed_lengths(row, coding, reduce):
    for name, elements in [
        ("laplace", 70000), ("sparse", 40000), ("constant", 4097), ("zeros", 100), ("outlier", 3000),
        ("laplace", 1), ("laplace", 15), ("laplace", 16), ("laplace", 17), ("laplace", 1023),
    ]:  # fmt: skip
        gradients = [content(name, elements, seed) for seed in range(3)]
        if name == "laplace":
            gradients[1][:] = 0
        fixed, by_length = thinwire.exchange(gradients, f"{row}:reduce={reduce}", seed=8)
        coded, figures = thinwire.exchange(gradients, f"{row}:reduce={reduce},coding={coding}", seed=8)
        numpy.testing.assert_array_equal(fixed, coded)  # to the bit, but for the signs of zeros
        chunks = -(-elements // CHUNK)
        assert figures["payload_bytes"] <= by_length["payload_bytes"] + 3 * (8 + (1 + 4) * chunks)  # announcements; a kind and a length of each code


def entropy_bytes(decoded):
    """Of each chunk's numbers as they would be coded by their own frequencies in it."""
    total = 0.0
    for first in range(0, len(decoded), CHUNK):
        chunk = decoded[first : first + CHUNK]
        counts = numpy.unique(chunk, return_counts=True)[1]
        total -= (counts * numpy.log2(counts / len(chunk))).sum()
    return total / 8


@pytest.mark.parametrize("name", ["laplace", "sparse", "outlier"])
@pytest.mark.parametrize(
    "spec, head",
    [
        ("terngrad:clip=0", 4),
        ("dorefa:bits=1", 4),
        ("dorefa:bits=3", 4),
        ("dorefa:bits=5", 4),
        ("int:bits=4,bucket=32768,feedback=off", 4),
        ("int:bits=8,bucket=32768,feedback=off", 4),
        ("fp8:feedback=off", 4),
        ("natural:bits=4", 4),
        ("alq:bits=2", 4 + 4 * 4),
        ("zipml:bits=6", 4 + 4 * 64),
        ("qsgd:bits=4,bucket=32768", 4),
    ],
)
def test_bits_are_the_entropy(spec, head, name):
    values = content(name, 3 * CHUNK)
    decoded, figures = thinwire.exchange([values], f"{spec},coding=entropy", seed=1)
    chunks = 3
    least = entropy_bytes(decoded)
    frequencies = 25 / 8 * min(256, max(len(numpy.unique(decoded[i * CHUNK : (i + 1) * CHUNK])) for i in range(chunks)) * 2)
    around = 8 + 12 + 1 + chunks * (4 + head + 1 + frequencies + 16 + 2 * 4)  # of the message and of each chunk: length, units, a kind, a coder's
    assert least + chunks * head <= figures["payload_bytes"] <= 1.01 * least + around
    _, fixed = thinwire.exchange([values], spec, seed=1)
    assert figures["payload_bytes"] <= fixed["payload_bytes"] + 8 + 5 * chunks


def omega(n):
    """Elias's codeword as his paper has it: binary numbers, each the length of the next one less 1, and a 0."""
    word = "0"
    while n > 1:
        word = f"{n:b}" + word
        n = len(f"{n:b}") - 1
    return word


def elias_bits(levels):
    """QSGD's two strings of signed levels: of those that are not 0, with their distances, and of all of them."""
    sparse, behind = "", 0
    for place, level in enumerate(levels, start=1):
        if level:
            sparse += omega(place - behind) + "s" + omega(abs(level))
            behind = place
    sparse += omega(len(levels) + 1 - behind)  # none further
    dense = "".join(omega(abs(level) + 1) + ("s" if level else "") for level in levels)
    return min(len(sparse), len(dense))


@pytest.mark.parametrize("name", ["laplace", "sparse", "outlier"])
@pytest.mark.parametrize("bits, norm", [(2, "max"), (4, "max"), (8, "l2"), (8, "max")])
def test_bits_are_those_of_elias(bits, norm, name):
    values = content(name, CHUNK + 5000)
    spec = f"qsgd:bucket=32768,bits={bits},norm={norm}"
    decoded, figures = thinwire.exchange([values], f"{spec},coding=elias", seed=1)
    fixed, _ = thinwire.exchange([values], spec, seed=1)
    numpy.testing.assert_array_equal(fixed, decoded)
    expected = 8 + 12 + 1  # announcement; head; what is used
    levels_of_sign = 2 ** (bits - 1) - 1
    for first in (0, CHUNK):
        chunk, given = decoded[first : first + CHUNK].astype(float), values[first : first + CHUNK].astype(float)
        outermost = numpy.sqrt((given**2).sum()) if norm == "l2" else numpy.abs(given).max()
        levels = numpy.rint(chunk / (outermost / levels_of_sign)).astype(int).tolist()
        expected += 4 + 4 + 1 + min(-(-elias_bits(levels) // 8), -(-len(chunk) * bits // 8))  # its length, its norm, a kind
    assert figures["payload_bytes"] == expected


@pytest.mark.parametrize("gradient", ["cnn", "lstm"])
@pytest.mark.parametrize("options", ["bits=2,norm=l2", "bits=4", "bits=4,norm=l2", "bits=8,norm=l2"])
def test_elias_takes_up_to_a_third_more_than_frequencies_on_real_gradients(gradient, options):
    """As README says."""
    values = numpy.load(GRADIENTS / f"{gradient}.npy").astype(numpy.float32).ravel()
    taken = {coding: thinwire.exchange([values], f"qsgd:{options},coding={coding}", seed=1)[1]["payload_bytes"] for coding in ("entropy", "elias")}
    assert 0.97 < taken["elias"] / taken["entropy"] < 1.34


@pytest.mark.parametrize("coding", ["entropy", "elias"])
def test_what_is_coded_does_not_add_up(coding):
    with pytest.raises(ValueError, match=f"coding={coding} does not go with reduce=sum"):
        thinwire.exchange([content("laplace", 100)] * 2, f"qsgd:coding={coding},reduce=sum")
