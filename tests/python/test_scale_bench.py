"""bench.scale: the cluster that it describes; and, where SimGrid was there when thinwire was built, a small simulation, which is built for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.scale.__main__ import elements_of  # noqa: E402
from bench.scale.simulation import Cluster, can_be_built  # noqa: E402


def test_ranks_are_placed_host_by_host():
    cluster = Cluster(ranks=6, ranks_a_host=3, bits_per_second=1e9)
    assert cluster.host_file().split() == ["host0"] * 3 + ["host1"] * 3
    assert cluster.hosts_option() == "0,0,0,1,1,1"
    assert Cluster(6, 1, 1e9).hosts_option() == "flat"


def test_the_link_has_the_rate_less_headers():
    hosts, cores, _, bytes_per_second, *_ = Cluster(8, 2, 1e9).description().split()
    assert (hosts, cores) == ("4", "2") and 0.93 < 8 * float(bytes_per_second) / 1e9 < 0.95


def test_all_ranks_fit_into_memory():
    assert elements_of(16, 1000) == 1000
    assert 24 * 1024 * elements_of(1024, 10**9) <= 16 * 2**30 < 24 * 1024 * (elements_of(1024, 10**9) + 1000)


def test_a_small_simulation(tmp_path):
    if not can_be_built():
        pytest.skip("SimGrid was not there when thinwire was built")

    def simulate(*options):
        out = tmp_path / "scale.json"
        out.unlink(missing_ok=True)
        command = [sys.executable, "-m", "bench.scale", "--ranks", "4", "--links", "1gbit", "--elements", "100000", "--repetitions", "1", "--out", out, *options]
        subprocess.run([*map(str, command)], cwd=ROOT, check=True, capture_output=True, timeout=300)
        return json.loads(out.read_text())["rows"]

    alone, again = (simulate("--network-alone", "--ranks-a-host", "1", "--specs", "casq:bits=2,reduce=scatter")[0] for _ in range(2))
    flat, auto, hosts, auto_on_hosts = simulate("--ranks-a-host", "1,2", "--specs", "casq:bits=2,reduce=scatter;auto")
    assert alone["seconds"] == pytest.approx(again["seconds"], rel=1e-3) and alone["seconds"] < flat["seconds"]
    by_arithmetic = 2 * 3 / 4 * 100_000 * 32 / (1e9 * 1448 / 1538)
    assert by_arithmetic < flat["plain_seconds"] < 1.25 * by_arithmetic  # 1.03 times; of messages that share their links 1.37
    assert 50e-6 < flat["round_seconds"] < 5e-3  # of simulated time
    assert "hosts of 2" in (tmp_path / "scale.svg").read_text()
    assert auto["compressor"] == auto_on_hosts["compressor"] == "auto"
    assert auto["spec"].startswith("casq:") and auto["seconds"] < auto["plain_seconds"] and auto_on_hosts["seconds"] < auto_on_hosts["plain_seconds"]
    assert flat["seconds"] < flat["plain_seconds"] and hosts["traffic_bytes"] < flat["traffic_bytes"]
