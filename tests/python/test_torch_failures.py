"""A worker that raises, dies, stands still, sends too much or too little, or receives spoilt bytes ends the others' backward
pass too, with an error, within the timeout; one that is late does not. Whatever the end, what the others remember can be
saved and is good."""

import os
import signal
import subprocess
import sys
import time

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from torch import nn
from small_models import backward, batch, ddp, gradients
from thinwire import PayloadError, PeerError, StateError
from thinwire.torch import group_communicator
from thinwire.torch.lanes import BucketJob
from worker_pool import WorkerPool, pool

TIMEOUT = 5  # seconds
KEPT = []
SPECS = ["casq:bits=2", "casq:bits=2,reduce=scatter"]


def begin(spec=SPECS[0], timeout=TIMEOUT, scaler=None, backend=None):
    """A model in the middle of its training: DDP has rebuilt its buckets."""
    model = ddp()
    # One message a bucket, so that a parameter's memory changes with its steps and not before. Fewer lanes than buckets, so that
    # one that fails in its first bucket leaves others to be waited for.
    attachment = thinwire.torch.attach(model, spec, timeout=timeout, scaler=scaler, small_uncompressed=False, lanes=2, backend=backend)
    for step in range(3):
        backward(model, batch(step, dist.get_rank()))
    return model, attachment


def fails(model, attachment):
    """(type, text, seconds) of what the backward pass raises."""
    before = attachment.state_dict(all_ranks=False)["parameters"]
    start = time.monotonic()
    try:
        backward(model, batch(9, dist.get_rank()))
    except Exception as error:
        seconds = time.monotonic() - start
        check_memory(attachment, before)
        return type(error).__name__, str(error), seconds
    raise AssertionError("the backward pass went through")


def check_memory(attachment, before):
    """A step that failed has left no trace: with a scaler; without one what its other buckets sent is in the residuals again."""
    state = attachment.state_dict(all_ranks=False)
    for name, row in state["parameters"].items():
        assert row["steps"] == before[name]["steps"], name
        assert torch.equal(row["memory"], before[name]["memory"]), name
        assert torch.isfinite(row["residual"]).all(), name
        if attachment._scaler is not None:
            assert torch.equal(row["residual"], before[name]["residual"]), name
    attachment.load_state_dict(state)


def further_use(model, attachment):
    with pytest.raises(StateError, match="of no further use, since it failed"):
        backward(model, batch(10, dist.get_rank()))
    assert attachment.stats()["steps"] >= 3
    attachment.close()


def break_reducer(attachment):
    def broken(*_):
        raise KeyError("my own fault")

    real = attachment._reducer
    others = {"__getattr__": lambda _, name: getattr(real, name)}
    attachment._reducer = type("BrokenReducer", (), {"reduce": broken} | others)()


def raise_on_one(bad_rank):
    model, attachment = begin()
    if dist.get_rank() == bad_rank:
        break_reducer(attachment)
    outcome = fails(model, attachment)
    further_use(model, attachment)
    return outcome


def raise_in_the_first_step(bad_rank, sparse):
    """In that of a static graph DDP takes the buckets before anybody else can say that they failed."""
    model = ddp(nn.Embedding(9, 4, sparse=True) if sparse else None, static_graph=True)
    inputs = torch.arange(3) if sparse else batch(0, dist.get_rank())
    attachment = thinwire.torch.attach(model, SPECS[0], timeout=TIMEOUT, lanes=2, small_uncompressed=False)
    if dist.get_rank() == bad_rank:
        break_reducer(attachment)
    with pytest.raises(KeyError if dist.get_rank() == bad_rank else PeerError):
        backward(model, inputs)
    attachment.close()


def fail_in_one_lane(bad_rank):
    """Seconds until a survivor knows and has its state; the worker that failed lives on and does nothing more."""
    model, attachment = begin(timeout=20 * TIMEOUT, scaler=torch.amp.GradScaler("cpu"))
    dist.barrier()
    if dist.get_rank() == bad_rank:
        time.sleep(2)  # all lanes of the others wait by then
        job = BucketJob("no reducer", False, torch.zeros(1), [0], 1.0)
        attachment._lanes.submit(0, job)
        job.wait()
        KEPT.append((model, attachment))  # what is collected leaves its groups anyway
        return None
    start = time.monotonic()
    fails(model, attachment)
    return time.monotonic() - start


def die_or_stop(bad_rank, how, spec, backend=None):
    group_communicator._PAIRS_FROM = 0  # where Gloo is asked for
    model, attachment = begin(spec, backend=backend)
    dist.barrier()
    if dist.get_rank() == bad_rank:
        os.kill(os.getpid(), how)
    outcome = fails(model, attachment)
    further_use(model, attachment)
    return outcome


def after_every_collective(attachment, action):
    for lane in attachment._lanes._lanes:

        def perform(collective, real=lane._communicator.perform):
            real(collective)
            action(collective)

        lane._communicator.perform = perform


def receive_spoilt_bytes(bad_rank, spec, place):
    def spoil(collective):
        if collective.kind in ("gather", "scatter"):
            torch.from_dlpack(collective.result)[place] ^= 1

    model, attachment = begin(spec, scaler=torch.amp.GradScaler("cpu"))
    if dist.get_rank() == bad_rank:
        after_every_collective(attachment, spoil)
    outcome = fails(model, attachment)
    further_use(model, attachment)
    return outcome


class OtherLength:
    """A collective like another one, of as many times its elements."""

    def __init__(self, collective, times):
        self.kind, self.group, self.root = collective.kind, collective.group, collective.root
        self.data, self.result = (
            torch.zeros(int(times * like.numel()), dtype=like.dtype)
            for like in (torch.from_dlpack(collective.data), torch.from_dlpack(collective.result))
        )


def send_another_length(bad_rank, spec, times):
    model, attachment = begin(spec, backend="gloo")
    if dist.get_rank() == bad_rank:
        for lane in attachment._lanes._lanes:

            def perform(collective, real=lane._communicator.perform):
                real(OtherLength(collective, times))
                real(collective)

            lane._communicator.perform = perform
    outcome = fails(model, attachment)
    further_use(model, attachment)
    return outcome


def be_late(bad_rank, spec):
    """Whether one worker's lateness shows in the gradients."""
    taken = []
    for delay in (0, TIMEOUT / 10):
        model, attachment = begin(spec)
        if dist.get_rank() == bad_rank:
            after_every_collective(attachment, lambda _, delay=delay: time.sleep(delay))
        model.zero_grad()
        backward(model, batch(9, dist.get_rank()))
        taken.append(gradients(model))
        attachment.close()
    return torch.equal(*taken)


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


@pytest.mark.parametrize("sparse", [False, True])
def test_an_exception_in_a_static_graphs_first_step_ends_all(own_pool, sparse):
    own_pool.run(raise_in_the_first_step, 1, sparse)


def test_a_worker_that_fails_in_one_lane_leaves_them_all(own_pool):
    for seconds in own_pool.run(fail_in_one_lane, 1)[::2]:
        assert seconds < 10 * TIMEOUT


@pytest.mark.parametrize("spec", [*SPECS, "none", "auto"])  # the last two sum plainly, one of them at first
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_or_stands_still_ends_the_others(own_pool, how, spec):
    own_pool.begin(die_or_stop, 1, how, spec)
    expect_that_the_others_end(own_pool)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_so_does_one_that_gloo_carries_the_messages_of(own_pool, how, spec):
    own_pool.begin(die_or_stop, 1, how, spec, "gloo")
    expect_that_the_others_end(own_pool)


def expect_that_the_others_end(own_pool):
    for rank in (0, 2):
        outcome, failure = own_pool.answer(rank, limit=60)
        assert failure is None, failure
        kind, text, seconds = outcome
        assert kind == PeerError.__name__ and "another worker" in text
        # A worker may notice only when the one between has given up.
        assert seconds < 2 * TIMEOUT + 2


@pytest.mark.parametrize(("place", "said"), [(0, "is not of the format agreed on"), (-1, "was changed on its way")])
@pytest.mark.parametrize("spec", SPECS)
def test_spoilt_bytes_are_refused_and_end_the_others(own_pool, spec, place, said):
    outcomes = own_pool.run(receive_spoilt_bytes, 1, spec, place)
    assert outcomes[1][0] == PayloadError.__name__ and said in outcomes[1][1]
    for rank in (0, 2):
        kind, text, seconds = outcomes[rank]
        assert kind == PeerError.__name__ and "another worker" in text
        assert seconds < TIMEOUT + 2
    assert own_pool.close() == [0, 0, 0]


@pytest.mark.parametrize("times", [0.5, 2])
@pytest.mark.parametrize("spec", SPECS)
def test_a_message_of_another_length_ends_all(own_pool, spec, times):
    """With an error, or with Gloo's word on stderr: it ends a process that receives more than it expects."""
    own_pool.begin(send_another_length, 1, spec, times)
    answers = [own_pool.answer(rank, limit=60) for rank in range(3)]
    alive = [(outcome, failure) for outcome, failure in answers if failure != "the worker is dead"]
    assert alive
    for outcome, failure in alive:
        assert failure is None, failure
        kind, _, seconds = outcome
        assert kind in (PeerError.__name__, PayloadError.__name__)
        assert seconds < TIMEOUT + 2


@pytest.mark.parametrize("spec", SPECS)
def test_a_worker_that_is_late_but_within_the_timeout_does_not_show(spec):
    assert pool(3).run(be_late, 1, spec) == [True, True, True]


SCRIPT = """
import os, sys
import torch.distributed as dist
sys.path.insert(0, {folder!r})
from small_models import backward, batch, ddp
import thinwire.torch

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{store}", rank=rank, world_size=2)
model = ddp()
attachment = thinwire.torch.attach(model, timeout=5)
backward(model, batch(0, rank))
{ending}
print("done")
"""


@pytest.mark.parametrize("ending", ["", "del model", "dist.barrier(); dist.destroy_process_group(); attachment.close()"])
def test_a_script_may_end_in_any_order(tmp_path, ending):
    script = SCRIPT.format(folder=os.path.dirname(__file__), store=tmp_path / "store", ending=ending)
    command = [sys.executable, "-W", "ignore", "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for process in [subprocess.Popen([*command, str(rank)], **pipes) for rank in range(2)]:
        out, error = process.communicate(timeout=60)
        assert (process.returncode, out.strip()) == (0, "done"), error
        assert "Traceback" not in error and "leaked" not in error
