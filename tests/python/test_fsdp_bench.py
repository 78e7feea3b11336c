"""bench/fsdp: its table, and a small run between namespaces, in which less is sent."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from preloaded_python import preloaded_python

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.fsdp import __main__ as job  # noqa: E402
from test_training_job import needs_namespaces  # noqa: E402


def test_table():
    measured = [("plain", 1.0), ("none", 0.5)]
    rows = [{"link": "1gbit", "compressor": spec, "seconds": seconds, "wire_bytes": 3e6} for spec, seconds in measured]
    lines = job.table(rows).splitlines()
    assert lines[1].split() == ["1gbit", "plain", "1000", "1.00", "3.00"] and lines[2].split()[2:4] == ["500", "2.00"]
    assert job.table(rows[1:]).splitlines()[1].split()[3] == "-"


@needs_namespaces
@pytest.mark.parametrize("replicas, per_host", [(1, 1), (2, 1), (2, 2)])
def test_a_small_run(tmp_path, replicas, per_host):
    out = tmp_path / "fsdp.json"
    command = [preloaded_python(), "-m", "bench.fsdp", "--links", "1gbit", "--elements", "400000", "--steps", "2", "--replicas", str(replicas),
               "--per-host", str(per_host), "--specs", "plain;none;casq:bits=2" + ";none+casq:bits=4" * (replicas == 1), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = {row["compressor"]: row["wire_bytes"] for row in json.loads(out.read_text())["rows"]}
    assert list(sent)[:3] == ["plain", "none", "casq:bits=2"]
    size = 4 * 400_000
    if replicas == 1:  # Gloo's reduce-scatter is an all-reduce, which sends twice as much
        assert sent["plain"] - sent["none"] == pytest.approx(0.75 * size, rel=0.2)
        assert sent["none"] - sent["casq:bits=2"] == pytest.approx(0.75 * size * 15 / 16, rel=0.2)
        assert sent["none"] - sent["none+casq:bits=4"] == pytest.approx(0.75 * size * 7 / 8, rel=0.2)
    else:  # between two replicas of two shards, of all-reduces of shards: of one of them, or of a host's two
        assert sent["none"] - sent["casq:bits=2"] == pytest.approx(per_host * 0.5 * size * 15 / 16, rel=0.2)
    if per_host > 1:  # parameters and shards stay within it
        assert sent["plain"] < 1.2 * size


@needs_namespaces
@pytest.mark.parametrize("option", ["--replicas", "--per-host"])
def test_what_does_not_divide_the_workers_is_refused(option):
    done = subprocess.run([preloaded_python(), "-m", "bench.fsdp", option, "3"], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and f"{option} 3; allowed: what divides the 4 workers" in done.stderr
