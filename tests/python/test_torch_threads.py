"""Threads of a worker: they change no bit, need not be the same everywhere, and leave training its cores."""

import os

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import WIDTH, ddp, train
from thinwire.torch.cores import default_threads
from torch import nn
from worker_pool import pool


def check_threads(spec, threads_by_rank):
    """Every step's gradients and, at the end, the residuals; of buckets that are long enough to be shared."""
    torch.manual_seed(0)
    model = ddp(nn.Sequential(nn.Linear(WIDTH, 3000), nn.Linear(3000, 60)), bucket_cap_mb=25)
    threads = threads_by_rank[dist.get_rank()]
    # Floats that are summed by the engine are as reproducible as the engine.
    with thinwire.torch.attach(model, spec, threads=threads, small_uncompressed=False, timeout=30) as attachment:
        taken = train(model, 3, dist.get_rank())
        states = attachment.state_dict(all_ranks=False)["parameters"].values()
        return torch.stack(taken), torch.cat([state["residual"] for state in states])


@pytest.mark.parametrize("spec", ["casq:bits=2,retrain=2", "casq:bits=2,reduce=scatter"])
def test_threads_do_not_change_a_bit(spec):
    one = pool(2).run(check_threads, spec, [1, 1])
    for threads in ([3, 3], [1, 3]):
        for expected, got in zip(one, pool(2).run(check_threads, spec, threads), strict=True):
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(expected, got, strict=True))


@pytest.mark.parametrize(
    ("cores", "local_workers", "world_size", "expected"),
    [(2, "1", 8, 1), (2, "4", 4, 1), (4, "1", 8, 2), (16, "4", 64, 2), (64, "8", 8, 4), (64, "1", 1, 4),
     (16, None, 4, 2), (16, None, 64, 1), (16, "none", 4, 2), (16, "0", 4, 4)],
)  # fmt: skip
def test_the_default_leaves_half_of_a_workers_cores(monkeypatch, cores, local_workers, world_size, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local_workers is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_workers)
    assert default_threads(world_size) == expected
