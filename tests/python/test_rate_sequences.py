"""bench.rate_sequences: the recording is what the trainings' workers had, and the table says what the tool does."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from preloaded_python import preloaded_python

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import rate_sequences as job  # noqa: E402


def test_workers_have_gradients_of_their_own():
    steps, layout = job.language_gradients(0, 2, 2)
    first = next(steps)
    assert len(first) == 2 and first[0].shape == first[1].shape == (sum(int(np.prod(p["shape"])) for p in layout),)
    alone, _ = job.language_gradients(0, 1, 1)
    np.testing.assert_array_equal(first[0], next(alone)[0])  # the same seed's first batch
    assert 0.1 < np.linalg.norm(first[1] - first[0]) / np.linalg.norm(first[0]) < 10


def test_the_command():
    command = [preloaded_python(), "-m", "bench.rate_sequences", "--steps", "20", "--workers", "2", "--rates", "1", "--gradients", "cnn", "--json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)["rows"]
    assert [row["compressor"] for row in rows] == ["casq:rate=1,reduce=gather", "casq:rate=1,reduce=scatter"]
    gather = rows[0]
    assert 0.98 < gather["ten_least"] <= gather["ten_most"] < 1.1 and gather["within_a_tenth"] >= 0.7 and gather["most"] < 2
    assert 0.001 < gather["error_of_worker"] < 0.2
