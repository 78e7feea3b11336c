"""bench.rate_variants: known answers for Gaussian values, and what its ways have to do with each other."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import rate_variants as job  # noqa: E402

BLOCKS = np.random.default_rng(0).normal(size=(60, job.BLOCK))


def test_dither_is_uniform_and_unbiased():
    bits, error = job.dithered(BLOCKS, 0.5, 0)
    assert error == pytest.approx(0.5**2 / 12, rel=0.05)  # of a variance of 1
    assert 3.06 < bits < 3.15  # h(values and dither) - log2 of the step is 3.06; a geometric density, and an eighth of the dither, know less


def test_ways_in_their_order():
    errors = {name: min(job.error_at(2.0, BLOCKS, way, price) for price in prices[:2]) for name, (way, prices) in job.WAYS.items()}
    assert 2**-4 < errors["trellis"] < errors["by rate"] * 0.97 < errors["dead zone"] < errors["dither"]  # above Shannon's bound
    assert errors["trellis"] * 1.03 < errors["planes"] < errors["by rate"]  # most of a gain is in states' own tables
