"""A worker that raises, dies or stands still ends the others' backward pass too, with an error, within the timeout."""

import os
import signal
import subprocess
import sys
import time

import pytest
import thinwire.torch
import torch.distributed as dist
from small_models import backward, batch, ddp
from thinwire import PeerError, StateError
from worker_pool import WorkerPool

TIMEOUT = 5  # seconds


def begin():
    """A model in the middle of its training: DDP has rebuilt its buckets."""
    model = ddp()
    attachment = thinwire.torch.attach(model, timeout=TIMEOUT)
    for step in range(3):
        backward(model, batch(step, dist.get_rank()))
    return model, attachment


def fails(model):
    """(type, text, seconds) of what the backward pass raises."""
    start = time.monotonic()
    try:
        backward(model, batch(9, dist.get_rank()))
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - start
    raise AssertionError("the backward pass went through")


def further_use(model, attachment):
    with pytest.raises(StateError, match="of no further use, since it failed"):
        backward(model, batch(10, dist.get_rank()))
    assert attachment.stats()["steps"] >= 3
    attachment.close()


def raise_on_one(bad_rank):
    model, attachment = begin()
    if dist.get_rank() == bad_rank:

        def broken(*_):
            raise KeyError("my own fault")

        attachment._reducer = type("BrokenReducer", (), {"reduce": broken, "counters": attachment._reducer.counters})()
    outcome = fails(model)
    further_use(model, attachment)
    return outcome


def die_or_stop(bad_rank, how):
    model, attachment = begin()
    dist.barrier()
    if dist.get_rank() == bad_rank:
        os.kill(os.getpid(), how)
    outcome = fails(model)
    further_use(model, attachment)
    return outcome


@pytest.fixture
def own_pool():
    pool = WorkerPool(3)
    yield pool
    pool.kill()


def test_an_exception_reaches_its_own_script_and_ends_the_others(own_pool):
    outcomes = own_pool.run(raise_on_one, 1)
    assert outcomes[1][:2] == ("KeyError", "'my own fault'")
    for rank in (0, 2):
        kind, text, seconds = outcomes[rank]
        assert kind == PeerError.__name__ and "another worker" in text
        assert seconds < TIMEOUT + 2
    assert own_pool.close() == [0, 0, 0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_or_stands_still_ends_the_others(own_pool, how):
    own_pool.begin(die_or_stop, 1, how)
    for rank in (0, 2):
        outcome, failure = own_pool.answer(rank, limit=60)
        assert failure is None, failure
        kind, text, seconds = outcome
        assert kind == PeerError.__name__ and "another worker" in text
        # A worker may notice only when the one between has given up.
        assert seconds < 2 * TIMEOUT + 2


SCRIPT = """
import os, sys
import torch.distributed as dist
sys.path.insert(0, {folder!r})
from small_models import backward, batch, ddp
import thinwire.torch

dist.init_process_group("gloo", init_method="file://{store}", rank=0, world_size=1)
model = ddp()
attachment = thinwire.torch.attach(model, timeout=5)
backward(model, batch(0, 0))
{ending}
print("done")
"""


@pytest.mark.parametrize("ending", ["", "del model", "dist.destroy_process_group(); attachment.close()"])
def test_a_script_may_end_in_any_order(tmp_path, ending):
    script = SCRIPT.format(folder=os.path.dirname(__file__), store=tmp_path / "store", ending=ending)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
    assert "Traceback" not in done.stderr and "leaked" not in done.stderr
