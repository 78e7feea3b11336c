"""What LocalSteps refuses and survives: NaN, lost workers, and what cannot work."""

import copy
import math
import os
import signal
import time
from unittest import mock

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from local_trainings import BATCH, INPUTS, TIMEOUT, adagrad, adam, average, deep_linear, flat, inner_step, local_steps, residuals, saved, sgd, train
from small_models import ddp
from thinwire import ArgumentError, PeerError, StateError
from torch import nn
from torch.distributed.fsdp import fully_shard
from worker_pool import WorkerPool, pool


def check_nan(make_optimizer, options, bad_rank):
    with mock.patch.object(thinwire.torch.local_steps, "_BUCKET_BYTES", 1):  # a bucket for each parameter, of which some stay finite
        return train_with_nan(make_optimizer, options, bad_rank)


def train_with_nan(make_optimizer, options, bad_rank):
    model = deep_linear()
    optimizer = make_optimizer(model)
    overlap = options.get("overlap", 0)
    with local_steps(model, optimizer, 3, **options) as local:
        train(local, model, optimizer, 3 + overlap)
        before = saved(residuals(local))
        with local.shared_parameters():
            shared = flat(model)
        for step in range(4 + overlap, 7):
            inner_step(model, optimizer, step, dist.get_rank())
            if step == 6 and dist.get_rank() == bad_rank:
                inputs = torch.full((BATCH, INPUTS), math.nan)
                optimizer.zero_grad()
                model(inputs).mean().backward()
                optimizer.step()
            own = flat(model)
            local.step()
        for step in range(7, 7 + overlap):
            inner_step(model, optimizer, step, dist.get_rank())
            own = flat(model)
            local.step()
        assert local.stats()["failed_steps"] == 1 and local.stats()["outer_steps"] == 1
        assert "1 steps failed" in str(local)
        assert saved(residuals(local)) == before
        # The others keep what they have trained.
        assert torch.equal(flat(model), shared if dist.get_rank() == bad_rank else own)
        train(local, model, optimizer, 3, first=7 + overlap)
        assert local.stats()["failed_steps"] == 1 and local.stats()["outer_steps"] == 2
        assert torch.isfinite(flat(model)).all()
        with local.shared_parameters():
            return flat(model)


@pytest.mark.parametrize("make_optimizer", [sgd, adam, adagrad])
@pytest.mark.parametrize(("workers", "options"), [(1, {}), (3, {}), (3, {"rules": {"*": "casq:bits=2"}}), (3, {"compressor": "none"}), (2, {"overlap": 1})])
def test_an_outer_step_with_nan_is_skipped_on_all_workers(make_optimizer, workers, options):
    first, *others = pool(workers).run(check_nan, make_optimizer, options, workers - 1)
    assert all(torch.equal(first, other) for other in others)


def fails(local, step):
    begin = time.monotonic()
    with pytest.raises(PeerError, match="another worker is lost") as raised:
        step()
    seconds = time.monotonic() - begin
    with pytest.raises(StateError, match="this LocalSteps is of no further use, since it failed"):
        local.step()
    return type(raised.value).__name__, seconds


def die_or_stop(bad_rank, how, options):
    model = deep_linear()
    optimizer = sgd(model)
    local = local_steps(model, optimizer, 3, timeout=TIMEOUT, **options)
    train(local, model, optimizer, 5)
    before = saved(residuals(local))
    dist.barrier()
    if dist.get_rank() == bad_rank:
        os.kill(os.getpid(), how)

    def slowly():
        train(local, model, optimizer, 1, first=6)
        time.sleep(1)  # with an overlap, a lane may have failed long before its mean is due
        train(local, model, optimizer, options.get("overlap", 0), first=7)

    answer = fails(local, slowly)
    assert saved(residuals(local)) == before
    assert torch.isfinite(flat(model)).all()
    local.close()
    return answer


@pytest.fixture
def own_pool():
    workers = WorkerPool(3)
    yield workers
    workers.kill()


@pytest.mark.parametrize("options", [{}, {"overlap": 2, "compressor": "none"}])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_or_stands_still_ends_the_others(own_pool, how, options):
    own_pool.begin(die_or_stop, 1, how, options)
    for rank in (0, 2):
        outcome, failure = own_pool.answer(rank, limit=60)
        assert failure is None, failure
        kind, seconds = outcome
        assert kind == "PeerError"
        assert seconds < 2 * TIMEOUT + 3  # a worker may notice only when the one between has given up


def check_closed():
    model = deep_linear()
    local = local_steps(model, sgd(model), 1)
    local.close()
    local.close()
    with pytest.raises(StateError, match="this LocalSteps is closed"):
        local.step()
    with pytest.raises(TypeError, match="neither copied nor pickled; save its state_dict"):
        copy.deepcopy(local)


def check_late_unfreezing():
    model = deep_linear()
    model[0].requires_grad_(False)
    with local_steps(model, sgd(model), 1) as local:
        local.step()
        model[0].requires_grad_(True)
        with pytest.raises(StateError, match="'0.weight' is trained, and required no gradient .*make a new one after unfreezing"):
            local.step()


def test_a_parameter_that_was_frozen_at_first_is_refused():
    pool(2).run(check_late_unfreezing)


def test_a_closed_one_refuses_to_work():
    pool(2).run(check_closed)


def refused(said, model, optimizer=None, every=2, kind=ArgumentError, **options):
    with pytest.raises(kind, match=said):
        thinwire.torch.LocalSteps(model, optimizer or sgd(model), every, **options)


def check_refusals():
    model = deep_linear()
    refused("got DistributedDataParallel.*ddp_model.module", ddp())
    refused("takes a torch.nn.Module; got int", 5, sgd(model))
    refused("whose parameters are sharded", fully_shard(deep_linear()))
    refused("no parameter that requires a gradient", nn.ReLU(), sgd(model))
    refused("optimizer = int; allowed: the torch.optim.Optimizer", model, 5)
    refused("trains a parameter of shape .40, 8. that the model does not have", model, sgd(deep_linear()))
    for every in (0, -1, 1.5, None):
        refused(f"every = {every}; allowed: 1 to", model, every=every)
    refused("fragments = 3; allowed: 1 to 2, as there are 4 parameters and every = 2", model, fragments=3)
    refused("fragments = 5; allowed: 1 to 4", model, every=9, fragments=5)
    refused("overlap = 3; allowed: 0 to every // fragments = 2", model, overlap=3)
    refused("overlap = -1; allowed", model, overlap=-1)
    for mixing in (1, -0.1, "half", math.nan):
        refused("mixing = .*; allowed: 0 or more, and less than 1", model, overlap=1, mixing=mixing)
    refused("outer = 0.7; allowed: a function", model, outer=0.7)
    refused("outer made None; allowed: a function", model, outer=lambda parameters: None)
    refused("outer made an optimizer of other tensors", model, outer=lambda parameters: torch.optim.SGD(parameters[1:]))
    refused("bits=9", model, compressor="casq:bits=9")
    refused("'.embed' matches no parameter", model, rules={"*embed": "none"})
    refused("seed = -1", model, seed=-1)
    refused("timeout = 0; allowed", model, timeout=0)
    refused("parameter '0.weight' is torch.float64, and .* takes", deep_linear().double(), compressor="casq:bits=2,feedback=off",
            rules={"*": "casq:bits=2"})


def test_what_cannot_work_is_refused():
    pool(2).run(check_refusals)


def check_disagreement(by_rank, kinds, said):
    rank = dist.get_rank()
    options = dict(by_rank[rank])
    refused(said, deep_linear(options.pop("model_seed", 0)), kind=kinds[rank], **options)
    model = deep_linear()
    with local_steps(model, sgd(model), 1) as local:  # nobody is left hanging
        local.step()


@pytest.mark.parametrize(
    ("by_rank", "said"),
    [
        ([{}, {"model_seed": 1}, {}], "initial parameters .set one seed, or load one checkpoint.: .* on ranks 0, 2, .* on rank 1"),
        ([{"every": 3}, {}, {}], "every: 3 on rank 0, 2 on ranks 1, 2"),
        ([{}, {}, {"outer": average}], "outer: .*lr: 0.7.*on ranks 0, 1, .*lr: 1.* on rank 2"),
        ([{}, {"overlap": 1}, {}], "overlap: 0 on ranks 0, 2, 1 on rank 1"),
        ([{}, {"compressor": "none"}, {}], "compressors: .* on rank 1"),
    ],
    ids=["parameters", "every", "outer", "overlap", "compressor"],
)
def test_workers_that_disagree_all_learn_who_wants_what(by_rank, said):
    pool(3).run(check_disagreement, by_rank, [ArgumentError] * 3, said)


def test_a_worker_that_cannot_begin_tells_the_others():
    pool(3).run(check_disagreement, [{}, {"every": 0}, {}], [PeerError, ArgumentError, PeerError], "every = 0; allowed")


def check_part_of_the_world():
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return None
    model = deep_linear()
    with local_steps(model, sgd(model), 2, group=group) as local:
        train(local, model, sgd(model), 2)
        assert local.stats()["traffic_bytes"] > 0
        return flat(model)


def test_the_workers_may_be_a_part_of_the_world(own_pool):
    _, first, second = own_pool.run(check_part_of_the_world)
    assert torch.equal(first, second)


def test_without_a_process_group_it_says_so():
    model = deep_linear()
    refused("no process group; call .*init_process_group.* first, also for one worker", model)
