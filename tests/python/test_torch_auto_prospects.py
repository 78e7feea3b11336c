"""What ``auto``'s model makes of watched steps: how fast the link is, and how long a computation takes without plain sums beside it."""

import dataclasses

import pytest
import thinwire.torch
import torch.distributed as dist
from small_models import ddp
from test_torch_auto import run, wide
from thinwire.torch.step_clock import ReadyBucket, TimedStep
from worker_pool import pool


def check_link():
    """As a probe finds it, or as plain sums have shown it to be: on the worker where they were slowest, at best."""
    model = ddp(wide())
    with thinwire.torch.attach(model) as attachment:
        prospects, rank = attachment._auto._prospects, dist.get_rank()
        ready = [ReadyBucket(1.0, 1_000_000, []), ReadyBucket(1.5, 1_000_000, [])]  # by ring all-reduce two workers send 8 MB of them
        ready.insert(0, ReadyBucket(0.1, 10_000_000, [], is_sparse=True))  # of which some rows are sent, by other ways
        prospects._watched = [TimedStep(ready=ready, computed=1.5, seconds=seconds) for seconds in (9.0, 3.0 + 2 * rank, 8.0)]
        assert prospects._as_seen((1e6, 1e-3), 4) == pytest.approx((2e6, 1e-3))
        assert prospects._as_seen((1e7, 1e-3), 4) == pytest.approx((1e7, 1e-3))
        assert prospects._as_seen((1e7, 1e-3) if rank else (9e6, 2e-3), 4) == pytest.approx((9e6, 2e-3))  # of the owners of another part
        assert prospects._as_seen((1e7, 1e-3) if rank else None, 4) == pytest.approx((1e7, 1e-3))  # who has no part knows none
        prospects._senders = 4  # through one interface, where plain sums had it to themselves
        assert prospects._as_seen((1e5, 1e-3), 4) == pytest.approx((5e5, 1e-3))
        prospects._senders = 1
        prospects._watched = [TimedStep(ready=[ReadyBucket(1.0, 1_000_000, []), ReadyBucket(3.0, 3_000_000, [])], computed=3.0, seconds=5.0)]
        assert prospects._as_seen((1e6, 1e-3), 4) == pytest.approx((6e6, 1e-3))  # the last bucket had it to itself
        prospects._watched = [TimedStep(computed=1.0, seconds=2.0)] if rank else prospects._watched  # without buckets
        assert prospects._as_seen((1e6, 1e-3), 4) == pytest.approx((1e6, 1e-3))


def test_plain_sums_show_what_a_probe_has_not():
    pool(2).run(check_link)


def check_computation():
    """Is shorter by what plain sums beside it had of the processor: as much, by the byte, as those behind it."""
    model = ddp(wide())
    with thinwire.torch.attach(model) as attachment:
        run(model, attachment, 6)
        watched = attachment._auto._prospects._watched
        assert len(watched) >= 2 and all(0 <= step.processor_waiting < 1 and 0 < step.processor for step in watched)
        prospects = attachment._auto._prospects
        prospects._cores, prospects._threads, prospects.link = 0.5, 1, (1e9, 1e-3)
        step = TimedStep(ready=[ReadyBucket(1.0, 1_000_000, [0]), ReadyBucket(2.0, 3_000_000, [1])], computed=2.0, processor=1.0, processor_waiting=0.3)

        def found(**changes):
            prospects._watched = [dataclasses.replace(step, **changes)]
            return prospects._computation(4)

        assert (found().seconds, found().hidden, [bucket.seconds for bucket in found().ready]) == (pytest.approx(1.8), 0, pytest.approx([0.9, 1.8]))
        assert found(processor=0.5).seconds == pytest.approx(1.85) and found(processor=0.5).hidden == 0.25  # the core was idle for a while
        assert found(processor_waiting=9.0).seconds == 1.0
        assert found(ready=step.ready[1:]).seconds == 2.0  # nothing was on its way
        prospects.link = (2e6, 1e-3)  # in a second 2 of 16 MB
        assert found().seconds == pytest.approx(2 - 0.3 * 2 / 14 / 0.5)
        assert 0 < prospects.probe() < 100
        prospects.link = None
        assert prospects.probe() == 0


def test_plain_sums_beside_a_computation_delay_it():
    pool(2).run(check_computation)
