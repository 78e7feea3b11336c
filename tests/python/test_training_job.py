"""The main job: its statistics, its network, and itself, small."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from preloaded_python import preloaded_python

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.training import comparison, data, network, results, rootless, specs, table, tasks  # noqa: E402
from bench.training.__main__ import parser  # noqa: E402
from bench.training.random_projection import RandomProjection  # noqa: E402
from bench.training.settings import FASHION_MNIST  # noqa: E402

JOB = ["-m", "bench.training"]


def why_no_namespaces() -> str:
    """What hinders this user from making network namespaces; empty if nothing does."""
    name = f"thinwire-probe-{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    except OSError as error:
        return str(error)
    if made.returncode == 0:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    return made.stderr.strip() if made.returncode != 0 else ""


needs_namespaces = pytest.mark.skipif(bool(why_no_namespaces()), reason=f"no network namespaces: {why_no_namespaces()}")
needs_data = pytest.mark.skipif(not Path(FASHION_MNIST).exists(),
                                reason="dataset-fashion-mnist is not installed")


# Statistics

@pytest.mark.parametrize("degrees, quantile", [
    (1, 12.706), (5, 2.571), (10, 2.228), (11, 2.201), (15, 2.131), (30, 2.042), (120, 1.980)])
def test_student_quantile_is_the_published_one(degrees, quantile):
    assert comparison.student_quantile(degrees) == pytest.approx(quantile, abs=6e-4)


def test_paired_interval_of_known_values():
    # Differences 0.1, 0.3, -0.2, 0.4; Student's t with three degrees of freedom: 3.18245.
    interval = comparison.paired_interval([1.1, 2.3, 2.8, 4.4], [1, 2, 3, 4])
    assert interval.mean == pytest.approx(0.15)
    deviation = statistics.stdev([0.1, 0.3, -0.2, 0.4])
    assert interval.half_width == pytest.approx(3.18245 * deviation / 2, rel=1e-4)


def test_one_pair_has_no_interval():
    assert comparison.paired_interval([2.0], [1.5]) == comparison.Interval(0.5, None)


def test_smoothing_is_a_mean_of_the_last_losses():
    assert comparison.smoothed([4, 2, 6, 8], window=2) == [4, 3, 4, 7]


def test_time_to_the_same_loss():
    losses = [2.0] * 25 + [1.0] * 50  # its mean over 25 steps falls by .04 a step, to 1 at step 50
    seconds = [0.5] * len(losses)
    assert comparison.seconds_to_loss(losses, seconds, 1.0 + 1e-9) == pytest.approx(25.0)
    assert comparison.seconds_to_loss(losses, seconds, 1.5) == pytest.approx(19.0)
    assert comparison.seconds_to_loss(losses, seconds, 0.9) is None


def test_a_diverged_training_does_not_set_the_level():
    assert comparison.common_loss([0.40, 0.44, 3.0, float("nan")], reference=0.40) == 0.44


# Specifications and options

@pytest.mark.parametrize("text, expected", [
    ("plain,bf16", ["plain", "bf16"]),
    ("plain,casq:bits=1,feedback=off,bf16", ["plain", "casq:bits=1,feedback=off", "bf16"]),
    ("plain casq:bits=2;topk:ratio=0.01", ["plain", "casq:bits=2", "topk:ratio=0.01"]),
    ("gradiveq:ratio=8/qsgd:bits=4,x=1, plain", ["gradiveq:ratio=8/qsgd:bits=4,x=1", "plain"]),
    ("plain,plain", ["plain"])])
def test_split_specs(text, expected):
    assert specs.split_specs(text) == expected


def test_default_compressors_are_five():
    assert specs.split_specs(tasks.TASKS[tasks.IMAGES].compressors) == [
        "plain", "bf16", "powersgd", "casq:bits=2", "casq:bits=3"]


def test_names_that_begin_like_others_are_their_own():
    for spec in ("randomk:density=0.01", "thinwire:powersgd:rank=2", "thinwire:bf16"):
        specs.check([spec])
        assert specs.needs_thinwire(spec)


def test_powersgd_rank():
    assert specs.powersgd_rank("powersgd") == 4
    assert specs.powersgd_rank("powersgd:rank=2") == 2
    assert specs.powersgd_rank("plain") is None
    with pytest.raises(ValueError, match="powersgd:rank=R"):
        specs.check(["powersgd:rank=0"])


def test_random_ratio():
    assert specs.random_ratio("random:ratio=16") == 16
    assert specs.random_ratio("plain") is None
    for spec in ("random", "random:ratio=0.5", "random:ratio=x"):
        with pytest.raises(ValueError, match="random:ratio=R"):
            specs.check([spec])


def test_random_projections_keep_what_their_directions_hold_and_the_rest_for_later(tmp_path):
    """Alone, so that the mean is the worker's own: an orthogonal projection, and the next step's residual."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        state = RandomProjection(None, 4, seed=1)
        weight, bias = torch.zeros(64, 32, 3, 3), torch.zeros(64)
        left = torch.zeros(64, 288)
        for step in range(3):
            gradients = [torch.randn(64, 32, 3, 3), torch.randn(64)]
            given = [gradient.clone() for gradient in gradients]
            bucket = types.SimpleNamespace(index=lambda: 0, parameters=lambda: [weight, bias], gradients=lambda: gradients,
                                           buffer=lambda: gradients[0])
            state.reduce(bucket).wait()
            basis = state.directions(288, 0, 0)
            assert basis.shape == (288, 72)
            before = given[0].flatten(1) + left
            assert torch.allclose(gradients[0].flatten(1), before @ basis @ basis.T, atol=1e-5)
            assert torch.equal(gradients[1], given[1])
            left = before - gradients[0].flatten(1)
            assert state.sent_elements == (step + 1) * (64 * 72 + 64)
        assert not torch.equal(state.directions(288, 0, 0), state.directions(288, 0, 1))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("text, rate", [
    ("100mbit", 1e8), ("1gbit", 1e9), ("10Gbit", 1e10), ("2.5gbit", 2.5e9), ("none", None)])
def test_parse_link(text, rate):
    assert network.parse_link(text).bits_per_second == rate


@pytest.mark.parametrize("text", ["", "fast", "0gbit", "1", "1gb", "-1mbit"])
def test_bad_links_are_refused(text):
    with pytest.raises(ValueError, match="100mbit"):
        network.parse_link(text)


def test_bursts_are_a_fraction_of_a_millisecond():
    """What is smaller than the burst crosses the link for free."""
    for name in ("1gbit", "10gbit"):
        link = network.parse_link(name)
        assert link.burst_kib * 1024 * 8 / link.bits_per_second < 0.001


def test_help_fits_a_terminal_and_names_every_option():
    text = parser().format_help()
    for option in ("--workers", "--link", "--compressors", "--epochs", "--seeds", "--out"):
        assert option in text
    assert max(map(len, text.splitlines())) <= 100


# Data

def _idx(shape: tuple[int, ...], element_type: int = 8, missing: int = 0) -> bytes:
    elements = bytes(range(int(np.prod(shape)) - missing))
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, element_type, len(shape), *shape) + elements


def test_read_idx(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(_idx((2, 3))))
    assert data.read_idx(path).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("content", [
    b"", b"text", _idx((2, 3), element_type=13), _idx((2, 3), missing=1), _idx((2, 3))[:7]])
def test_bad_idx_files_are_refused(tmp_path, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(ValueError):
        data.read_idx(path)


def test_every_image_is_seen_once_an_epoch_and_the_order_depends_on_the_seed():
    def seen(seed: int) -> list[list[int]]:
        order = data.Order(count=24, workers=2, batch=4, seed=seed)
        assert order.steps(2.0) == 6
        return [[int(index) for batch in order.batches(rank, 6) for index in batch]
                for rank in range(2)]

    first, second = seen(0), seen(1)
    assert sorted(first[0][:12] + first[1][:12]) == list(range(24))
    assert first[0][:12] != first[0][12:]
    assert first == seen(0) and first != second


# Summary and table

def _run(name: str, seed: int, accuracy: float, step_seconds: float, final: float) -> dict:
    steps = 60
    return {"compressor": name, "seed": seed, "steps": steps, "warm_up_steps": 3,
            "losses": [2.0] * 20 + [final] * 40, "step_seconds": [step_seconds] * steps,
            "step_bytes": [1000] * steps, "accuracies": [[30, 0.5], [60, accuracy]],
            "arithmetic_bytes": 60_000, "arithmetic_bytes_per_step": 1000,
            "compute_seconds": 0.1, "hook_seconds": None, "compress_seconds": 0.02,
            "compression_error": None, "compressor_stats": {}}


def test_summary_compares_with_plain():
    runs = [_run("plain", 0, 0.90, 0.4, 0.5), _run("plain", 1, 0.91, 0.4, 0.5),
            _run("casq:bits=2", 0, 0.89, 0.2, 0.5), _run("casq:bits=2", 1, 0.91, 0.2, 0.5),
            _run("bad", 0, 0.10, 0.2, 2.0), _run("bad", 1, 0.10, 0.2, 2.0)]
    plain, casq, bad = results.summarise(runs)
    assert casq["speedup"] == pytest.approx(2.0)
    assert casq["accuracy_difference"] == pytest.approx(-0.005)
    assert casq["accuracy_interval"] == pytest.approx(12.7062 * 0.005, rel=1e-3)
    assert casq["wire_seconds"] == pytest.approx(0.2 - 0.1 - 0.02)
    assert casq["time_to_same_loss_ratio"] == pytest.approx(0.5)
    assert bad["seconds_to_same_loss"] is None and bad["time_to_same_loss_ratio"] is None
    assert plain["accuracy_difference"] is None and plain["speedup"] == 1.0


def test_table_fits_100_columns():
    runs = [_run(name, seed, accuracy, seconds, final) for seed in (0, 1)
            for name, accuracy, seconds, final in (
                ("plain", 1.0, 12.345, 0.5), ("casq:bits=2", 0.9, 1.0, 0.5),
                ("gradiveq:ratio=8,dimension=576/qsgd:bits=4", 0.0 + seed / 10, 0.9, 9.0))]
    text = table.render(results.summarise(runs))
    assert max(map(len, text.splitlines())) <= table.WIDTH
    assert "gradiveq:" in text and "not reached" in text and "±" in text


# The network

def _ours() -> set[str]:
    return {path.name for path in network.NAMESPACE_FOLDER.glob(f"{network.NAME_PREFIX}*")}


_RECEIVE = """
import socket, time
server = socket.create_server(("0.0.0.0", 5001)); print("ready", flush=True)
connection, _ = server.accept(); received = 0; start = time.perf_counter(); first = None
while data := connection.recv(1 << 18):
    now = time.perf_counter()
    if now - start < .2: first = now; continue
    received += len(data)
print(received * 8 / (now - first))
"""
_SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5001)); end = time.perf_counter() + 1
while time.perf_counter() < end: connection.sendall(bytes(1 << 16))
"""


@needs_namespaces
def test_namespaces_have_the_rate_and_go_away():
    with network.Namespaces(2, network.parse_link("100mbit")) as made:
        assert {made.namespace(0), made.namespace(1)} <= _ours()
        receiver = subprocess.Popen([*made.command_prefix(0), sys.executable, "-c", _RECEIVE],
                                    stdout=subprocess.PIPE, text=True)
        assert receiver.stdout.readline() == "ready\n"
        subprocess.run([*made.command_prefix(1), sys.executable, "-c", _SEND, made.address(0)],
                       check=True, timeout=20)
        rate = float(receiver.communicate(timeout=20)[0])
    assert 70e6 < rate < 105e6
    assert not {made.namespace(0), made.namespace(1)} & _ours()


@needs_namespaces
def test_half_a_network_is_deleted_when_the_rest_cannot_be_made(monkeypatch):
    made = network.Namespaces(2, network.parse_link("100mbit"))
    monkeypatch.setattr(made, "address", lambda rank: "nonsense")
    with pytest.raises(network.NetworkError, match="nonsense"):
        made.__enter__()
    assert not {name for name in _ours() if f"-{os.getpid()}-" in name}


@needs_namespaces
def test_what_a_killed_job_left_behind_is_deleted_and_nothing_else():
    gone = subprocess.Popen(["true"])
    gone.wait()
    abandoned, living = (f"{network.NAME_PREFIX}{pid}-worker0" for pid in (gone.pid, os.getpid()))
    for name in (abandoned, living):
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        assert abandoned in network.remove_abandoned()
        assert abandoned not in _ours() and living in _ours()
    finally:
        subprocess.run(["ip", "netns", "delete", living], check=True)


def test_users_without_root_get_namespaces_of_their_own_or_stay_where_they_are(monkeypatch):
    started = []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "execvp", lambda name, command: started.append(command))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    rootless.enter(["--link", "1gbit"])
    if rootless._allowed():
        assert started[0][0] == "unshare" and started[0][-2:] == ["--link", "1gbit"]
        rootless.enter([])  # inside, and still no root: not again
    assert len(started) == rootless._allowed()


def test_without_namespaces_a_job_is_told_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(network.NetworkError, match="root"):
        network.Namespaces(2, network.parse_link("1gbit")).__enter__()


# The job, small

_SMALL = ["--workers", "2", "--train-limit", "64", "--batch", "8", "--test-limit", "50", "--epochs", "1",
          "--compressors", "plain,bf16"]


def _job(*options: str, **arguments) -> subprocess.CompletedProcess:
    return subprocess.run([preloaded_python(), *JOB, *options], cwd=ROOT, capture_output=True, text=True, timeout=240,
                          **arguments)


def _check_results(out: Path, shaped: bool) -> dict:
    found = json.loads((out / "results.json").read_text())
    assert found["complete"] and found["format"] == 1
    assert found["network"]["shaped"] is shaped
    assert [row["compressor"] for row in found["summary"]] == ["plain", "bf16"]
    for row in found["summary"]:
        assert 0 <= row["accuracy"] <= 1 and row["step_seconds"] > 0 and row["speedup"] > 0
    for run in found["runs"]:
        assert len(run["losses"]) == len(run["step_seconds"]) == run["steps"] == 4
        assert run["accuracies"][-1][0] == 4
    documented = (ROOT / "bench/training/README.md").read_text()
    for key in {*found, *found["network"], *found["summary"][0], *found["runs"][0]}:
        assert f"`{key}`" in documented, f"{key} is not documented"
    return found


def _check_page(out: Path) -> None:
    page = (out / "report.html").read_text()
    assert not re.search(r"https?://|<script|<link|<img|@import|url\((?!#)", page)
    assert page.count("<svg") == 3 and "plain" in page and "</html>" in page


@needs_data
def test_job_on_loopback_and_its_resumption(tmp_path):
    done = _job(*_SMALL, "--link", "none", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "speed-up" in done.stdout and "loopback, unshaped" in done.stdout
    found = _check_results(tmp_path, shaped=False)
    _check_page(tmp_path)
    assert all(row["wire_bytes_per_step"] is None for row in found["summary"])

    again = _job(*_SMALL, "--link", "none", "--out", str(tmp_path), "--resume")
    assert again.returncode == 0, again.stderr
    assert _check_results(tmp_path, shaped=False)["runs"] == found["runs"]

    other = _job(*_SMALL, "--link", "none", "--out", str(tmp_path), "--resume", "--batch", "4")
    assert other.returncode == 2 and "cannot resume" in other.stderr


@needs_data
@needs_namespaces
def test_job_on_a_slow_link_counts_its_bytes_and_leaves_nothing_behind(tmp_path):
    before = _ours()
    done = _job(*_SMALL, "--link", "1gbit", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = _check_results(tmp_path, shaped=True)
    _check_page(tmp_path)
    for run in found["runs"]:  # headers and acknowledgements, and little else; of all steps, as a queue at the
        # interface is counted in the step that empties it
        assert 1.0 < sum(run["step_bytes"]) / run["arithmetic_bytes"] < 1.1
    plain, bf16 = found["summary"]
    assert plain["wire_bytes_per_step"] > 1.9 * bf16["wire_bytes_per_step"]
    assert _ours() <= before


def _start(out: Path, *options: str, **how) -> subprocess.Popen:
    """A job whose workers are at work: they have measured the network."""
    link = "none" if why_no_namespaces() else "1gbit"
    job = subprocess.Popen([sys.executable, *JOB, *_SMALL, "--epochs", "5000", "--link", link, "--out", str(out),
                            *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, start_new_session=True, **how)
    for line in job.stdout:
        if line.startswith("Measured"):
            return job
    raise AssertionError(job.communicate()[1])


def _workers_of(job: subprocess.Popen) -> list[int]:
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True,
                              text=True).stdout
    return [int(pid) for pid in children.split()]


def _alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _nothing_is_left(job: subprocess.Popen, workers: list[int]) -> None:
    assert not {name for name in _ours() if f"-{job.pid}-" in name}
    assert not [pid for pid in workers if _alive(pid)]


@needs_data
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_job_leaves_nothing_behind(tmp_path, number, code):
    job = _start(tmp_path)
    workers = _workers_of(job)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGSTOP)  # not even a worker that does not answer
    job.send_signal(number)
    _, errors = job.communicate(timeout=30)
    assert job.returncode == code and "stopped" in errors
    _nothing_is_left(job, workers)


@needs_data
def test_ctrl_c_ends_a_job_that_a_shell_has_put_into_the_background(tmp_path):
    job = _start(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=30)
    assert job.returncode == 130


@needs_data
def test_dead_worker_ends_the_job_and_is_named(tmp_path):
    job = _start(tmp_path)
    workers = _workers_of(job)
    os.kill(workers[1], signal.SIGKILL)
    _, errors = job.communicate(timeout=30)
    assert job.returncode == 1
    assert re.search(r"worker 1 died \(signal SIGKILL\)", errors)
    _nothing_is_left(job, workers)


@needs_data
def test_killed_job_takes_its_workers_along(tmp_path):
    job = _start(tmp_path)
    workers = _workers_of(job)
    job.kill()
    job.communicate()
    deadline = time.monotonic() + 10
    while any(map(_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    network.remove_abandoned()
    _nothing_is_left(job, workers)


def test_bad_requests_are_refused_before_anything_starts(tmp_path):
    for options, words in ((["--link", "fast"], "100mbit"),
                           (["--compressors", "powersgd:rank=x"], "powersgd:rank=R"),
                           (["--compressors", "random:ratio=0"], "random:ratio=R"),
                           (["--compressors", "plain", "--data", str(tmp_path)], "fashion-mnist")):
        done = _job(*options, "--out", str(tmp_path / "out"))
        assert done.returncode == 2 and words in done.stderr
        assert not (tmp_path / "out").exists()


# Networks

@pytest.mark.parametrize("name, millions", [("vgg", 4.3), ("resnet", 2.76)])
def test_networks_are_as_large_as_they_say(name, millions):
    import torch
    from bench.training.model import count_parameters, make_model

    model = make_model(3, name)
    assert count_parameters(model) == pytest.approx(1e6 * millions, rel=0.01)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    same = make_model(3, name)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters()))
