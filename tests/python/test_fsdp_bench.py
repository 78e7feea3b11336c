"""bench/fsdp: its table, and a small run between namespaces, in which less is sent; and the main job by FSDP2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from preloaded_python import preloaded_python

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.fsdp import __main__ as job  # noqa: E402
from bench.training import specs  # noqa: E402
from test_training_job import _SMALL, _job, needs_data, needs_namespaces  # noqa: E402


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


def test_specs_of_fsdp():
    gathers = {"fsdp/plain": "plain", "fsdp/casq:bits=2": "plain", "fsdp:gathers=casq:bits=4/none": "casq:bits=4", "casq:bits=2": None}
    specs.check(list(gathers))
    assert [specs.sharded_gathers(spec) for spec in gathers] == list(gathers.values())
    assert specs.thinwire_specs("fsdp:gathers=casq:bits=4/none") == (None, "none") and not specs.needs_thinwire("fsdp/plain")
    for wrong in ("fsdp:gathers=nonsense/none", "fsdp/nonsense", "fsdp:other=none/none"):
        with pytest.raises(ValueError, match="nonsense|fsdp"):
            specs.check([wrong])


@needs_data
def test_job_by_fsdp(tmp_path):
    done = _job(*_SMALL, "--link", "none", "--evaluations", "2", "--compressors", "fsdp/plain;fsdp:gathers=casq:bits=4/casq:bits=2", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    plain, compressed = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert plain["losses"] == pytest.approx(compressed["losses"], rel=0.2) and plain["losses"][0] == compressed["losses"][0]
    assert compressed["arithmetic_bytes"] < 0.3 * plain["arithmetic_bytes"]
    assert compressed["compressor_stats"]["gathered"]["ratio"] > 5
