"""gradiveq:refresh=every against an independent implementation in NumPy, in double precision, over many steps."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

TOOL = os.environ.get("THINWIRE_TOOL", str(Path(__file__).resolve().parents[2] / "build" / "thinwire"))
SHAPE, WORKERS, STEPS, DIMS = (48, 20, 3, 3), 3, 12, 5
FORGETTING = 0.95


def scattered(count):
    """The numbers in (-1, 1) that every worker begins with."""
    mask = (1 << 64) - 1

    def number(i):
        bits = ((i + 1) * 0x9E3779B97F4A7C15) & mask
        bits = ((bits ^ (bits >> 31)) * 0xBF58476D1CE4E5B9) & mask
        upper = bits >> 32
        return (upper - (1 << 32) if upper >= 1 << 31 else upper) * 2.0**-31

    return np.array([number(i) for i in range(count)])


def beside(rows, others):
    """Gram-Schmidt: `rows` made orthonormal beside `others`, which are already."""
    kept = list(others)
    for row in rows:
        for _ in range(2):
            for other in kept:
                row = row - (row @ other) * other
        kept.append(row / np.linalg.norm(row))
    return np.array(kept[len(others) :])


def slices_of(values, axis):
    """... x N x K of values of SHAPE: rows are filters, or (square) channel and kernel row; columns the rest."""
    leading = values.shape[: -len(SHAPE)]
    if axis == "filter":
        return values.reshape(*leading, SHAPE[0], -1)
    out, channels, height, width = SHAPE
    return np.swapaxes(values, -3, -2).reshape(*leading, out * height, channels * width)


class Reference:
    """One parameter of N slices of K entries, what all workers know, and each worker's residual."""

    def __init__(self, feedback, probes):
        self.feedback = feedback
        self.probes = probes
        self.residuals = None

    def step(self, gradients):
        """The mean that all workers decode; gradients: workers x N x K."""
        if self.residuals is None:
            self.residuals = np.zeros_like(gradients)
            mean = gradients.mean(0)
            rows = beside(scattered((DIMS + self.probes) * len(mean)).reshape(DIMS + self.probes, -1) @ mean, [])
            self.components, self.probe, self.variances = rows[:DIMS], rows[DIMS:], np.zeros(DIMS)
            return mean
        values = gradients + self.residuals
        u = self.components
        y = sum(u @ x.T for x in values)
        left = [x - x @ u.T @ u for x in values]
        s = sum(self.probe @ x.T for x in values)
        p = beside(s, [])
        z = sum(p @ r for r in left)
        if self.feedback:
            self.residuals = np.array([r - p.T @ (p @ r) for r in left])
        total = y.T @ u + p.T @ z
        self.follow(total)
        return total / len(gradients)

    def follow(self, total):
        outside = total - total @ self.components.T @ self.components  # of rank `probes`, as it is P'Z
        span = np.concatenate([self.components, np.linalg.svd(outside)[2][: self.probes]])
        within = span @ total.T
        moments = within @ within.T + np.diag([*(FORGETTING * self.variances), *[0] * self.probes])
        variances, vectors = np.linalg.eigh(moments)
        rows = vectors[:, ::-1].T @ span
        self.components, self.probe, self.variances = rows[:DIMS], rows[DIMS:], variances[::-1][:DIMS]


def gradients_that_drift(seed):
    """Steps x workers x N x K: a few strong directions, which turn slowly, and noise."""
    random = np.random.default_rng(seed)
    slices, entries = SHAPE[0], SHAPE[1] * 9
    directions, turn = random.normal(size=(8, entries)), random.normal(size=(8, entries))
    strengths = 2.0 ** -np.arange(8)[:, None]
    return np.array([
        [random.normal(size=(slices, 8)) @ (strengths * (directions + 0.05 * step * turn))
         + 0.05 * random.normal(size=(slices, entries)) for _ in range(WORKERS)]
        for step in range(STEPS)]).astype(np.float32)  # fmt: skip


@pytest.mark.parametrize("axis", ["filter", "square"])
@pytest.mark.parametrize("probes", [1, 3])
@pytest.mark.parametrize("feedback", ["off", "on"])
def test_every_step_decodes_to_what_the_reference_does(feedback, probes, axis, tmp_path):
    gradients = gradients_that_drift(1)
    np.save(tmp_path / "g.npy", gradients.reshape(STEPS, WORKERS, -1))
    (tmp_path / "layout.json").write_text(json.dumps([{"name": "conv.weight", "shape": SHAPE, "offset": 0}]))
    spec = f"gradiveq:refresh=every,axis={axis},dims={DIMS},probes={probes},smallest=1,feedback={feedback}"
    subprocess.run(
        [TOOL, "exchange", "--compressor", spec, "--input", tmp_path / "g.npy", "--layout", tmp_path / "layout.json",
         "--output", tmp_path / "mean.npy", "--json"], check=True, capture_output=True)  # fmt: skip
    decoded = slices_of(np.load(tmp_path / "mean.npy").reshape(STEPS, *SHAPE), axis)
    given = slices_of(gradients.reshape(STEPS, WORKERS, *SHAPE), axis).astype(np.float64)
    reference = Reference(feedback == "on", probes)
    for step in range(STEPS):
        expected = reference.step(given[step])
        error = np.linalg.norm(decoded[step] - expected) / np.linalg.norm(expected)
        assert error < 1e-5, f"step {step}"
    if feedback == "off" and axis == "filter":  # whose slices have few directions: what is decoded is most of the gradient
        exact = given[-1].mean(0)
        assert np.sum((decoded[-1] - exact) ** 2) < 0.2 * np.sum(exact**2)
