"""`thinwire allreduce`: between threads, between MPI processes, and when one of those is lost."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import mpi
import pytest
from test_tool import TOOL, WIDEST_LINE, fail, succeed, succeed_in_json

SMALL = ["--elements", 300_000, "--repetitions", 2, "--bucket", 100_000]
TIMEOUT = 5  # seconds, of a worker that waits for others, who start within it on a busy machine too
PATIENCE = 60  # in which everything has ended, on a busy machine too


needs_mpi = pytest.mark.skipif(not mpi.is_built_into(TOOL), reason="no Open MPI here when this was built")


def mpirun(workers, *arguments):
    return subprocess.Popen(["mpirun", "-n", str(workers), TOOL, "allreduce", *map(str, arguments)],
                            env=os.environ | mpi.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def ended(job):
    """Its exit status and output; a job that goes on is killed, and the test fails."""
    try:
        out, error = job.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    return job.returncode, out, error


def workers_of(job, count):
    """Process numbers of mpirun's workers, as soon as all are there."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(job.pid)], capture_output=True, text=True)
        found = [int(line.split()[0]) for line in done.stdout.splitlines() if line.split()[1] == "thinwire"]
        if len(found) == count:
            return found
        time.sleep(0.05)
    raise AssertionError("the workers have not started")


def workers_at_work(job, count):
    """workers_of(), once all have gradients: before, in MPI's own start, nobody would notice that one stands still."""
    found = workers_of(job, count)
    deadline = time.monotonic() + PATIENCE
    try:
        while not all(most_memory(worker) > 64e6 for worker in found):
            assert time.monotonic() < deadline, "the workers do not get to work"
            time.sleep(0.05)
    except FileNotFoundError:
        raise AssertionError(f"a worker has ended before: {ended(job)}") from None
    return found


def most_memory(process):
    """Bytes that it has had; MPI alone takes 25 MB, gradients of 2 M elements several times 8."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return 1024 * int(found[1]) if found else 0  # none while it is being started


def check(report, workers, spec):
    assert report["workers"] == workers
    assert report["elements"] == 300_000
    assert report["compressor"].startswith(spec)
    assert report["speedup"] == pytest.approx(report["plain_seconds"] / report["seconds"])
    assert report["plain_traffic_bytes"] == pytest.approx(8 * 300_000 * (workers - 1) / workers)
    assert report["first_seconds"] > 0 and report["codec_seconds"] > 0
    assert report["mean_seconds"] > 0
    assert report["link_gbps"] > 0 and report["round_seconds"] > 0
    assert report["processor_seconds"] > 0 and report["plain_processor_seconds"] > 0


@pytest.mark.parametrize("spec", ["casq:bits=2,reduce=scatter", "casq:bits=3,reduce=gather", "bf16"])
def test_threads_as_workers(spec):
    report = succeed_in_json("allreduce", "--workers", 3, "--compressor", spec, *SMALL)
    check(report, 3, spec.split(",")[0])
    saved = report["plain_traffic_bytes"] - report["traffic_bytes"]
    assert report["break_even_gbps"] == pytest.approx(8e-9 * saved / report["codec_seconds"])
    assert report["nmse_mean"] < (0.5 if "bits=2" in spec else 0.1)


def test_traffic_is_what_the_formula_says():
    """Bits of CASQ's message, sent to two others: 8 (12 + ceil(c/8)) + 32 2^b c + b n, in three buckets of c = 4 chunks."""
    report = succeed_in_json("allreduce", "--workers", 3, "--compressor", "casq:bits=2,reduce=gather", *SMALL)
    bucket = 12 + 1 + 4 * 4 * 4 + 2 * 100_000 / 8
    assert report["traffic_bytes"] == pytest.approx(3 * bucket * 2, rel=1e-3)


def test_threads_of_a_worker_change_no_bit():
    arguments = ["allreduce", "--workers", 2, "--compressor", "casq:bits=2,reduce=scatter", *SMALL]
    assert succeed_in_json(*arguments, "--threads", 3)["nmse_mean"] == succeed_in_json(*arguments)["nmse_mean"]


def test_buckets_and_lanes_are_chosen_by_a_trial():
    arguments = ["allreduce", "--workers", 2, "--compressor", "casq:bits=2", "--elements", 1_000_000, "--repetitions", 1]
    chosen = succeed_in_json(*arguments)
    assert chosen["trial"]["codec_seconds"] > 0 and chosen["trial"]["wire_seconds"] >= 0
    assert 1 <= chosen["lanes"] <= 8
    tried = chosen["trial"]["tried"]
    assert [each["bucket_elements"] for each in tried] == [6_553_600, 655_360]  # a division by 4 would be one bucket too
    fastest = min(tried, key=lambda each: each["seconds"])
    assert (chosen["bucket_elements"], chosen["lanes"]) == (fastest["bucket_elements"], fastest["lanes"])
    given = succeed_in_json(*arguments, "--bucket", 500_000, "--lanes", 2)
    assert (given["trial"], given["lanes"], given["bucket_elements"]) == (None, 2, 500_000)
    one = succeed_in_json(*arguments, "--bucket", 500_000)
    assert one["bucket_elements"] == 500_000 and one["trial"]["tried"] == []
    two = succeed_in_json(*arguments, "--lanes", 2)
    assert two["lanes"] == 2 and [each["lanes"] for each in two["trial"]["tried"]] == [2, 2]


def test_a_layouts_parameters_fill_buckets(tmp_path):
    layout = tmp_path / "layers.json"
    shapes = [[40_000], [200, 300], [0], [150_000], [50_000]]
    offsets = [0, 40_000, 100_000, 100_000, 250_000]
    layout.write_text(json.dumps([{"name": f"p{i}", "shape": shape, "offset": offset}
                                  for i, (shape, offset) in enumerate(zip(shapes, offsets))]))
    arguments = ["allreduce", "--workers", 2, "--compressor", "casq:bits=2,reduce=gather", "--repetitions", 1,
                 "--bucket", 100_000]
    report = succeed_in_json(*arguments, "--layout", layout, "--lanes", 2, "--warm-up", 2)
    assert (report["elements"], report["warm_up"]) == (300_000, 2)
    # Buckets of 100,000, 150,000 and 50,000 elements, of 4, 5 and 2 chunks, sent to one other.
    assert report["traffic_bytes"] == pytest.approx(sum(12 + 1 + 16 * c + n / 4 for n, c in [(100_000, 4), (150_000, 5),
                                                                                            (50_000, 2)]), rel=1e-3)
    assert "--elements" in fail(2, *arguments, "--layout", layout, "--elements", 300_000)
    assert "nowhere" in fail(1, *arguments, "--layout", "nowhere.json")


def test_one_worker_alone():
    report = succeed_in_json("allreduce", "--workers", 1, "--compressor", "none", "--elements", 10, "--repetitions", 1)
    assert report["traffic_bytes"] == 0
    assert report["nmse_mean"] == 0
    assert report["break_even_gbps"] is None


def test_table_fits():
    lines = succeed("allreduce", "--workers", 2, "--compressor", "casq:bits=2", *SMALL).splitlines()
    assert max(map(len, lines)) <= WIDEST_LINE
    assert any("times as fast" in line for line in lines)


def test_trace_shows_codec_and_wire_of_every_lane(tmp_path):
    path = tmp_path / "trace.json"
    succeed("allreduce", "--workers", 2, "--lanes", 3, "--compressor", "casq:bits=2", "--trace", path, *SMALL)
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1}
    assert {event["tid"] for event in spans} == {0, 1, 2, 3, 4, 5}
    assert {event["name"] for event in spans if event["tid"] % 2 == 0} == {"encode", "decode"}  # the last needs no set-up
    assert all(event["name"].startswith("gather of") for event in spans if event["tid"] % 2 == 1)
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} >= {"lane 0 codec", "lane 2 wire"}


@pytest.mark.parametrize("arguments, mentions", [
    (["--compressor", "casq:bits=9"], "bits"),
    (["--compressor", "none", "--elements", "0"], "--elements"),
    (["--compressor", "none", "--lanes", "0"], "--lanes"),
    (["--compressor", "none", "--workers", "0"], "--workers"),
    (["--compressor", "none", "--timeout", "0"], "--timeout"),
    (["--compressor", "none", "--threads", "0"], "--threads"),
    (["--compressor", "none", "--workers", "3", "--hosts", "0,0"], "such as 0,0,1,1"),
    (["--compressor", "none", "--workers", "2", "--hosts", "0,one"], "such as 0,0,1,1"),
    ([], "--compressor"),
])
def test_bad_usage(arguments, mentions):
    assert mentions in fail(2, "allreduce", *arguments)


def test_a_trace_that_cannot_be_written():
    assert "/nowhere/trace.json" in fail(1, "allreduce", "--workers", 2, "--compressor", "none", "--trace",
                                         "/nowhere/trace.json", *SMALL)


@needs_mpi
def test_processes_as_workers():
    status, out, error = ended(mpirun(3, "--compressor", "casq:bits=2,reduce=scatter", "--json", *SMALL))
    assert status == 0, error
    check(json.loads(out), 3, "casq:bits=2")


@needs_mpi
def test_processes_that_move_their_messages_themselves():
    status, out, error = ended(mpirun(3, "--compressor", "casq:bits=2,reduce=scatter", "--json", *SMALL, "--lanes", 2, "--progress", "caller"))
    assert status == 0, error
    check(json.loads(out), 3, "casq:bits=2")


@needs_mpi
def test_processes_and_threads_send_the_same():
    arguments = ["--compressor", "casq:bits=2,reduce=gather", *SMALL]
    _, out, _ = ended(mpirun(2, *arguments, "--json"))
    by_threads = succeed_in_json("allreduce", "--workers", 2, *arguments)
    by_processes = json.loads(out)
    for key in ["traffic_bytes", "plain_traffic_bytes", "nmse_mean"]:
        assert by_processes[key] == by_threads[key]


HOSTS = ["--compressor", "qsgd:bits=4,reduce=gather", "--hosts", "0,0,1,1", *SMALL]


def test_workers_that_share_hosts_send_a_part_each():
    report = succeed_in_json("allreduce", "--workers", 4, *HOSTS)
    check(report, 4, "qsgd:bits=4")
    assert report["hosts"] == [0, 0, 1, 1]
    # Of three buckets of 100,000, cut between chunks, a part of each to one other worker; within the host gradients, and means.
    assert report["traffic_bytes"] == pytest.approx(300_000 / 2 * 4 / 8, rel=0.02)
    assert report["within_host_bytes"] == pytest.approx(2 * 4 * 3 * 65536, rel=0.02)
    assert report["nmse_mean"] < 0.05
    assert "4 workers (threads of one process) on 2 hosts" in succeed("allreduce", "--workers", 4, *HOSTS)
    assert "on one level" in succeed("allreduce", "--workers", 2, "--compressor", "bf16", "--hosts", "auto", *SMALL)


@needs_mpi
def test_processes_that_share_hosts_send_what_threads_send():
    by_threads = succeed_in_json("allreduce", "--workers", 4, *HOSTS)
    status, out, error = ended(mpirun(4, *HOSTS, "--json"))
    assert status == 0, error
    for key in ["hosts", "traffic_bytes", "within_host_bytes"]:
        assert json.loads(out)[key] == by_threads[key]
    assert json.loads(out)["nmse_mean"] == pytest.approx(by_threads["nmse_mean"])
    status, out, error = ended(mpirun(2, "--compressor", "bf16", "--hosts", "auto", *SMALL))
    assert status == 0 and "on one level" in out, error


@needs_mpi
@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_worker_ends_those_of_all_hosts(victim):
    job = mpirun(4, "--compressor", "casq:bits=2", "--hosts", "0,0,1,1", "--timeout", TIMEOUT, "--elements", 2_000_000, "--repetitions", 10_000)
    victims = workers_at_work(job, 4)
    time.sleep(1.5)
    os.kill(victims[victim], signal.SIGKILL)
    status, _, _ = ended(job)
    assert status != 0


@needs_mpi
@pytest.mark.parametrize(("spec", "progress"), [("none", "thread"), ("casq:bits=2,reduce=scatter", "thread"), ("none", "caller")])
def test_a_stopped_worker_ends_the_others_within_the_timeout(spec, progress):
    job = mpirun(3, "--compressor", spec, "--progress", progress, "--timeout", TIMEOUT, "--elements", 2_000_000, "--repetitions", 10_000)
    victim = workers_at_work(job, 3)[1]
    time.sleep(1.5)
    os.kill(victim, signal.SIGSTOP)
    status, _, error = ended(job)
    assert status != 0
    for worker in (0, 2):
        assert f"thinwire: error: worker {worker}: " in error
    assert f"for {1000 * TIMEOUT} ms" in error


@needs_mpi
def test_a_killed_worker_ends_the_others():
    job = mpirun(3, "--compressor", "casq:bits=2", "--timeout", TIMEOUT, "--elements", 2_000_000, "--repetitions", 10_000)
    victim = workers_at_work(job, 3)[2]
    time.sleep(1.5)
    os.kill(victim, signal.SIGKILL)
    status, _, _ = ended(job)
    assert status != 0
