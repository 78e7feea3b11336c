"""The compiled module: registry, errors, and a reducer driven by hand."""

import gc
import pickle
import subprocess
import sys
import threading
import time

import numpy
import pytest
import thinwire
import torch
from thinwire import _native

ROW_KEYS = {
    "name", "family", "description", "bits", "wire_id", "wire_version", "aggregation", "lossless", "unbiased", "contractive", "unit",
    "takes_stage", "sizes", "learns", "parameters", "reference",
}  # fmt: skip


def reducer(elements=(6, 4), *, spec="none", rank=0, world_size=1, **options):
    defaults = {"rules": [], "small_uncompressed": False, "seed": 0, "lanes": 1, "threads": 1, "measure_every": 0}
    layout = [(f"p{index}", [size]) for index, size in enumerate(elements)]
    return _native.Reducer(layout, spec, rank=rank, world_size=world_size, **(defaults | options))


def exchange(reductions):
    """Performs collectives for workers that go in step; returns what kinds there were."""
    kinds = []
    while (collectives := [reduction.next() for reduction in reductions])[0] is not None:
        kinds.append(collectives[0].kind)
        data = [torch.from_dlpack(collective.data) for collective in collectives]
        if kinds[-1] == "sum":
            combined = torch.stack(data).sum(0, dtype=data[0].dtype)
        elif kinds[-1] == "gather":
            combined, data = torch.cat(data), [torch.from_dlpack(collective.result) for collective in collectives]
        else:
            raise NotImplementedError(kinds[-1])
        for place in data:
            place.copy_(combined)
    assert all(collective is None for collective in collectives)
    return kinds


def test_the_registry_has_the_tools_keys():
    rows = thinwire.compressors()
    assert [row["name"] for row in rows][0] == "none"
    assert {"none", "bf16", "fp16", "casq"} <= {row["name"] for row in rows}
    for row in rows:
        assert set(row) == ROW_KEYS
        for parameter in row["parameters"]:
            more = {"choices"} if parameter["kind"] == "choice" else {"minimum", "maximum"}
            assert set(parameter) == {"name", "kind", "default", "allowed", "help"} | more


def test_whole_parameters_have_whole_limits():
    casq = next(row for row in thinwire.compressors() if row["name"] == "casq")
    bits = next(parameter for parameter in casq["parameters"] if parameter["name"] == "bits")
    assert (bits["kind"], bits["minimum"], bits["maximum"]) == ("integer", 1, 8)
    assert all(isinstance(bits[key], int) for key in ("minimum", "maximum", "default"))


def test_canonical_specs_name_every_parameter():
    assert thinwire.canonical_spec("casq").startswith("casq:bits=2")


@pytest.mark.parametrize("name", ["ArgumentError", "PayloadError", "PeerError", "StateError"])
def test_errors_are_pickleable_and_also_pythons_own(name):
    kind = getattr(thinwire, name)
    again = pickle.loads(pickle.dumps(kind("why")))
    assert type(again) is kind and str(again) == "why"
    assert issubclass(kind, thinwire.Error) and issubclass(kind, ValueError if name == "ArgumentError" else RuntimeError)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"spec": "casq:bits=9"}, "bits"),
        ({"spec": "nonsense"}, "nonsense"),
        ({"rules": [("*", "casq:colour=red")]}, "colour"),
        ({"rank": 3}, "rank"),
        ({"lanes": 0}, "lanes"),
    ],
)
def test_wrong_options_are_named(options, said):
    with pytest.raises(thinwire.ArgumentError, match=said):
        reducer(**options)


@pytest.mark.parametrize(
    ("bucket", "parameters", "said"),
    [
        (torch.zeros(9), [0, 1], "shorter"),
        (torch.zeros(11), [0, 1], "longer"),
        (torch.zeros(10), [0, 2], "no parameter 2"),
        (torch.zeros(10, dtype=torch.float64), [0, 1], "float32"),
        (torch.zeros(12), [0, 0], "twice"),
    ],
)
def test_wrong_buckets_are_refused(bucket, parameters, said):
    with pytest.raises(thinwire.ArgumentError, match=said):
        reducer().reduce(bucket, parameters, 0, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_bucket_becomes_the_mean_in_its_own_dtype(dtype):
    buckets = [torch.arange(10).to(dtype) * factor for factor in (1, 3)]
    workers = [reducer(rank=rank, world_size=2) for rank in range(2)]
    kinds = exchange([worker.reduce(bucket, [0, 1], 0, 1.0) for worker, bucket in zip(workers, buckets, strict=True)])
    assert set(kinds) == {"sum"}
    for bucket in buckets:
        assert bucket.dtype == dtype and torch.equal(bucket, torch.arange(10).to(dtype) * 2)


def test_a_numpy_bucket_will_do():
    bucket = numpy.arange(10, dtype=numpy.float32)
    exchange([reducer().reduce(bucket, [0, 1], 0, 1.0)])
    assert bucket.tolist() == list(range(10))


def test_a_reduction_keeps_bucket_and_reducer_alive():
    reduction = reducer(elements=(100_000,), spec="casq").reduce(torch.randn(100_000), [0], 0, 1.0)
    gc.collect()
    collective = reduction.next()
    del reduction
    gc.collect()
    assert torch.from_dlpack(collective.data).numel() > 0


def test_residuals_hold_what_was_not_sent():
    """Sum of inputs = workers x mean + sum of residuals, with and without a residual from before."""
    generator = torch.Generator().manual_seed(1)
    workers = [reducer(elements=(5000, 700), spec="casq:bits=2", rank=rank, world_size=3) for rank in range(3)]
    before = torch.zeros(5700)
    for _ in range(3):
        buckets = [torch.randn(5700, generator=generator) for _ in workers]
        inputs = torch.stack(buckets).sum(0) + before
        exchange([worker.reduce(bucket, [0, 1], 0, 1.0) for worker, bucket in zip(workers, buckets, strict=True)])
        assert torch.equal(buckets[0], buckets[1]) and torch.equal(buckets[0], buckets[2])
        before = sum(torch.cat([torch.from_dlpack(row[2]) for row in worker.state()]) for worker in workers)
        torch.testing.assert_close(3 * buckets[0] + before, inputs, rtol=1e-5, atol=1e-5)
    assert before.norm() > 0


def test_saved_state_continues_with_the_same_bits():
    bucket = torch.randn(5700, generator=torch.Generator().manual_seed(2))
    first = reducer(elements=(5000, 700), spec="casq:bits=1")
    exchange([first.reduce(bucket.clone(), [0, 1], 0, 1.0)])
    second = reducer(elements=(5000, 700), spec="casq:bits=1")
    second.load_state(first.state())
    results = [bucket.clone(), bucket.clone()]
    for worker, result in zip((first, second), results, strict=True):
        exchange([worker.reduce(result, [0, 1], 0, 1.0)])
    assert torch.equal(*results)


def test_state_that_does_not_fit_changes_nothing():
    worker = reducer(elements=(5000, 700), spec="casq:bits=1")
    exchange([worker.reduce(torch.randn(5700), [0, 1], 0, 1.0)])
    rows = worker.state()
    broken = [rows[0], (rows[1][0], rows[1][1], rows[1][2][:-1], rows[1][3])]
    for wrong in (rows[:1], rows[::-1], broken, [rows[0], (*rows[1][:3], b"\xff\xff")]):
        with pytest.raises(thinwire.StateError):
            worker.load_state(wrong)
    for row, kept in zip(worker.state(), rows, strict=True):
        assert row[:2] == kept[:2] and numpy.array_equal(row[2], kept[2]) and row[3] == kept[3]


def test_compression_does_not_hold_the_interpreter():
    reduction = reducer(elements=(8_000_000,), spec="casq:bits=2").reduce(torch.randn(8_000_000), [0], 0, 1.0)
    spans = []

    def encode():
        while True:
            start = time.perf_counter()
            collective = reduction.next()
            spans.append((start, time.perf_counter()))
            if collective is None:
                break
            if collective.kind == "gather":
                torch.from_dlpack(collective.result).copy_(torch.from_dlpack(collective.data))

    thread = threading.Thread(target=encode)
    thread.start()
    ticks = []
    while thread.is_alive():
        ticks.append(time.perf_counter())
    start, end = max(spans, key=lambda span: span[1] - span[0])
    assert sum(start + 1e-4 < tick < end - 1e-4 for tick in ticks) > 10


HOLDS_ON = """
import ctypes
from thinwire import _native
reducer = _native.Reducer([("p", [4])], "none", rank=0, world_size=1, rules=[], small_uncompressed=False, seed=0, lanes=1,
                          threads=1, measure_every=0)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(reducer))  # as what an interrupted script leaves behind
"""


def test_a_process_that_ends_with_a_reducer_in_use_says_nothing_of_leaks():
    done = subprocess.run([sys.executable, "-c", HOLDS_ON], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_object_that_outlives_the_interpreter_prints_nothing():
    """As all do at Ctrl-C and where processes are ended by os._exit() in a hook's thread: nanobind would name each, in forty lines and more."""
    script = """
import ctypes
from thinwire import _native
reducer = _native.Reducer([("p", [64])], "none", rank=0, world_size=1, rules=[], small_uncompressed=False, seed=0, lanes=1, threads=1, measure_every=0)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(reducer))
print("made")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "made\n", "")
