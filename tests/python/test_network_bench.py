"""bench/network: its layers, its table and picture, and itself, small."""

import json
import subprocess
import sys
from pathlib import Path

import mpi
import pytest
from preloaded_python import preloaded_python

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.network import __main__ as job  # noqa: E402
from bench.network import ddp_path, mpi_path, plot, timeline  # noqa: E402
from test_training_job import why_no_namespaces  # noqa: E402


@pytest.mark.parametrize("elements", [1, 1000, 1_000_000, 25_600_000, 60_000_000])
def test_layers_have_as_many_elements_as_asked_for(elements):
    shapes = ddp_path.shapes(elements)
    assert sum(map(ddp_path._count, shapes)) == elements
    assert elements < 25_600_000 or (512, 512, 3, 3) in shapes


def row(**changes):
    return {"link": "100mbit", "elements": 25_600_000, "path": "DDP", "compressor": "casq:bits=2,reduce=scatter",
            "seconds": 12.9, "limit_seconds": 12.8, "speedup": 13.25, "traffic_bytes": 153.6e6, "wire_bytes": 154.1e6,
            "break_even_gbps": 19.7} | changes


def test_table_fits_and_has_every_row():
    rows = [row(), row(path="MPI", limit_seconds=None, break_even_gbps=None, wire_bytes=None, speedup=None)]
    lines = job._table(rows).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 100
    assert "13.25" in lines[2] and "1.01" in lines[2] and "-" in lines[3]


def test_a_cycle_whose_steps_differ_has_its_average():
    even, uneven = row(mean_seconds=13.0), row(compressor="gradiveq", seconds=0.2, speedup=6.0, mean_seconds=0.4, repetitions=51)
    assert job._averages([row(), even]) == ""
    assert job._averages([even, uneven]) == "100mbit, gradiveq: 400 ms on average over 51 repetitions, 3.00 times as fast\n"


def test_picture_is_the_same_for_the_same_rows(tmp_path):
    for name in ("a.svg", "b.svg"):
        plot.draw([row(), row(link="1gbit", compressor="plain", speedup=1.0), row(path="MPI")], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def event(name, lane, begin, milliseconds, worker=0):
    return {"ph": "X", "pid": worker, "tid": 2 * lane + (" of " in name), "name": name, "ts": 1e3 * begin, "dur": 1e3 * milliseconds}


def test_timeline_says_how_much_codec_and_wire_overlap(tmp_path):
    trace = {"traceEvents": [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "worker 0"}},
        event("encode", 0, 50, 4), event("sum of 8 bytes", 0, 54, 6), event("encode", 1, 53, 3), event("decode", 0, 60, 10),
        event("encode", 0, 0, 1000, worker=1)]}
    events = timeline.events_of(trace, 0)
    assert [(each["kind"], each["lane"], each["begin"]) for each in events] == [
        ("encode", 0, 0), ("wire", 0, 4), ("encode", 1, 3), ("decode", 0, 10)]
    # The codec from 0 to 6 and from 10 to 20, the wire from 4 to 10.
    assert timeline.shares(events) == pytest.approx({"codec": 0.8, "wire": 0.3, "both": 0.1})
    for name in ("a.svg", "b.svg"):
        timeline.draw(events, "title", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_collectives_by_both_ways():
    done = subprocess.run(
        [preloaded_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bench.collectives", "--elements", "100,70000"],
        cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.lstrip()[:1].isdigit()]
    assert [(row[0], row[1]) for row in rows] == [(size, name) for size in ("100", "70,000") for name in ("sum", "gather", "scatter,")]
    assert all(float(seconds) > 0 for row in rows for seconds in row[-2:])


@pytest.mark.skipif(bool(why_no_namespaces()), reason=f"no namespaces: {why_no_namespaces()}")
@pytest.mark.skipif(not mpi.is_built_into(mpi_path.TOOL), reason="no Open MPI here when this was built")
def test_job_in_namespaces_counts_what_it_sends(tmp_path):
    done = subprocess.run(
        [preloaded_python(), "-m", "bench.network", "--links", "1gbit", "--elements", "400000", "--repetitions", "2", "--workers",
         "3", "--mpi", "casq:bits=2,reduce=scatter", "--ddp", "plain;casq:bits=2", "--timelines", "--out", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "network.json").read_text())["rows"]
    assert [(each["path"], each["compressor"]) for each in rows] == [
        ("MPI", "plain"), ("MPI", "casq:bits=2,reduce=scatter"), ("DDP", "(no exchange)"), ("DDP", "plain"), ("DDP", "casq:bits=2")]
    for each in rows:
        if each["traffic_bytes"]:
            assert 1 <= each["wire_bytes"] / each["traffic_bytes"] < 1.6  # headers, acknowledgements and barriers
    assert (tmp_path / "network.svg").stat().st_size > 1000
    assert max(len(line) for line in done.stdout.splitlines() if str(tmp_path) not in line) <= 100
    assert (tmp_path / "1gbit_400000_casq_bits_2_reduce_scatter.svg").stat().st_size > 1000


@pytest.mark.skipif(bool(why_no_namespaces()), reason=f"no namespaces: {why_no_namespaces()}")
@pytest.mark.skipif(not mpi.is_built_into(mpi_path.TOOL), reason="no Open MPI here when this was built")
def test_job_in_namespaces_of_two_workers_sends_each_part_once(tmp_path):
    spec = "qsgd:bits=8,reduce=gather"
    done = subprocess.run(
        [preloaded_python(), "-m", "bench.network", "--links", "1gbit", "--elements", "1000000", "--repetitions", "2", "--per-host", "2",
         "--mpi", f"{spec};hosts:{spec}", "--ddp", f"hosts:{spec}", "--out", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(each["path"], each["compressor"]): each for each in json.loads((tmp_path / "network.json").read_text())["rows"]}
    flat = rows["MPI", spec]
    for two_levels in (rows["MPI", f"hosts:{spec}"], rows["DDP", f"hosts:{spec}"]):
        # Half of the codes from each of two workers to one of the other host, where each of four sent all of it to two.
        assert two_levels["traffic_bytes"] == pytest.approx(500_000, rel=0.02)
        assert 1 <= two_levels["wire_bytes"] / 1e6 < 1.3
    assert flat["wire_bytes"] / 1e6 >= 3  # in a ring, where of each host one worker sends to the other
    assert max(len(line) for line in done.stdout.splitlines() if str(tmp_path) not in line) <= 100
