"""The process groups of lanes: of a part of the world, again and again, and with the group's own timeout."""

import time
from datetime import timedelta

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import ddp, train
from thinwire.torch import lane_groups
from worker_pool import WorkerPool, pool

ROUNDS = 50


def timeouts(attachment):
    return {lane.group._get_backend(torch.device("cpu")).options._timeout for lane in attachment._lanes._lanes}


def check_own_timeout():
    group = dist.new_group(timeout=timedelta(seconds=77))
    model = ddp(process_group=group)
    with thinwire.torch.attach(model, "none") as attachment:
        assert timeouts(attachment) == {timedelta(seconds=77)}
    with thinwire.torch.attach(model, "none", timeout=5) as attachment:
        assert timeouts(attachment) == {timedelta(seconds=5)}
    dist.destroy_process_group(group)


def check_part_of_world():
    """A model whose process group is a part of the world; the others know nothing of it. Both workers have made another number
    of groups before."""
    dist.new_group([0, 1])
    group = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        return
    model, plain = ddp(process_group=group), ddp(process_group=group)
    with thinwire.torch.attach(model, "none", timeout=30) as attachment:
        mine, theirs = train(model, 2, dist.get_rank()), train(plain, 2, dist.get_rank())
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)
    with thinwire.torch.attach(model, "bf16", timeout=30) as attachment:
        train(model, 1, dist.get_rank())
        assert attachment.lanes >= 2


def check_rounds():
    halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = halves[dist.get_rank() % 2]
    for _ in range(ROUNDS):
        model = ddp(process_group=group)
        with thinwire.torch.attach(model, "bf16", timeout=10, lanes=2) as attachment:
            train(model, 1, dist.get_rank())
            assert attachment.stats()["steps"] == 1


def check_nobody_is_early():
    """Rank 1 connects late: nobody may close what it still connects to."""
    make = lane_groups.LaneGroups.make

    def make_late(groups):
        made = make(groups)
        time.sleep(0.5)
        return made

    model = ddp()
    dist.barrier()
    start = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(lane_groups.LaneGroups, "make", make_late)
        attachment = thinwire.torch.attach(model, "none")
    assert time.monotonic() - start > 0.4
    attachment.close()


def test_attach_returns_when_all_workers_have_connected():
    pool(3).run(check_nobody_is_early)


def test_lanes_wait_as_long_as_the_models_group():
    pool(2).run(check_own_timeout)


@pytest.fixture
def own_pool():
    pools = []
    yield lambda size: pools.append(WorkerPool(size)) or pools[-1]
    for made in pools:
        made.kill()


def test_a_models_group_may_be_a_part_of_the_world(own_pool):
    workers = own_pool(3)
    workers.run(check_part_of_world)
    assert workers.close() == [0, 0, 0]


def test_parts_of_the_world_attach_and_close_again_and_again(own_pool):
    own_pool(4).run(check_rounds)


@pytest.mark.parametrize("config", ["cuda:nccl", "cpu:gloo,cuda:nccl"])
def test_lanes_are_gloos_where_the_model_is_nccls(monkeypatch, config):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    assert lane_groups._backend_of(None) == "gloo"
