"""What attach() refuses of FSDP's models, and says; and that a worker which is lost, or fails, ends the others."""

import os
import signal
import time
from datetime import timedelta

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from sharded_models import Network, loss_of, mesh_of, sharded
from thinwire import ArgumentError, PeerError, StateError
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from worker_pool import WorkerPool, pool


def refused(said, model, *arguments, **options):
    with pytest.raises(ArgumentError, match=said):
        thinwire.torch.attach(model, *arguments, **options)


def check_models():
    module = object.__new__(FullyShardedDataParallel)  # it wants an accelerator
    refused("FSDP's first version. Call torch.distributed.fsdp.fully_shard", module)
    refused("of a pipeline.*fully_shard", object.__new__(PipelineStage))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallel = parallelize_module(nn.Sequential(nn.Linear(8, 8)), mesh["tp"], {"0": ColwiseParallel()})
    refused("tensor parallel.*DistributedDataParallel, or fully_shard", parallel)
    refused("tensor parallel too.*Leave tensor parallelism away", fully_shard(parallel, mesh=mesh["dp"]))
    model = Network()
    fully_shard(model.layers[0], mesh=mesh_of((4,)))
    refused("has prepared parts. Call fully_shard.. on the whole too", model)
    fully_shard(model, mesh=mesh_of((2, 2)))
    refused("sharded on two meshes", model)
    refused("compiled as a whole. attach.. to the module", torch.compile(sharded((4,)), backend="eager"))
    refused("no parameter that requires a gradient", sharded((4,), nn.Sequential(nn.Linear(4, 4)).requires_grad_(False)))


def check_arguments(shape):
    refused("'auto' tries specs on DDP's buckets.*name a spec", sharded(shape))
    refused("lanes = 0; allowed", sharded(shape), "casq:bits=2", lanes=0)
    refused("hosts = 'auto'; allowed for FSDP2: 'flat'.*by the mesh", sharded(shape), "casq:bits=2", hosts="auto")
    refused("'nothing' matches no parameter; there are 11", sharded(shape), "casq:bits=2", rules={"nothing": "none"})
    refused("scaler = 5", sharded(shape), "casq:bits=2", scaler=5)
    refused("timeout", sharded(shape), "casq:bits=2", timeout=0)
    model = sharded(shape)
    model.set_all_reduce_hook(lambda shards: None)
    refused("has an all-reduce hook or a reduce-scatter of its own already", model, "casq:bits=2")
    model = sharded(shape)
    with thinwire.torch.attach(model, "casq:bits=2", rules={"layers.0.*": "bf16"}) as attachment:
        assert attachment.compressors["layers.0.weight"] == attachment.compressors["layers.0.bias"] == "bf16:feedback=off"
        refused("attached to this model already", model, "casq:bits=2")
        with pytest.raises(TypeError, match="can be neither copied nor pickled"):
            attachment.__reduce__()
    if len(shape) == 1:
        refused("has an owner.*take one", sharded(shape), "powersgd:rank=1", small_uncompressed=False)


def check_differences(shape):
    """One worker's arguments differ: all of the mesh are told, and none waits."""
    last = dist.get_rank() == dist.get_world_size() - 1
    with pytest.raises((ArgumentError, PeerError), match="do not agree|could not begin"):
        thinwire.torch.attach(sharded(shape), "casq:bits=3" if last else "casq:bits=2")
    with pytest.raises((ArgumentError, PeerError), match="lanes = 0|could not begin"):
        thinwire.torch.attach(sharded(shape), "casq:bits=2", lanes=0 if last else None)


def check_freezing(shape):
    model = sharded(shape)
    model.layers[0].weight.requires_grad_(False)
    attachment = thinwire.torch.attach(model, "none")
    loss_of(model, 0).backward()
    assert model.layers[0].weight.grad is None
    model.layers[0].weight.requires_grad_(True)
    with pytest.raises(ArgumentError, match="required no gradient when thinwire was attached; attach after freezing"):
        loss_of(model, 1).backward()
    attachment.close()


def check_closed(shape):
    model = sharded(shape)
    attachment = thinwire.torch.attach(model, "none")
    attachment.close()
    attachment.close()
    loss_of(model, 0).backward()  # FSDP's own
    assert attachment.stats()["steps"] == 0
    with pytest.raises(StateError, match="closed"):
        attachment.check_usable()


def test_models():
    pool(4).run(check_models)


@pytest.mark.parametrize("shape", [(2, 2), (2,)], ids=str)
def test_arguments(shape):
    pool(4 if len(shape) == 2 else 2).run(check_arguments, shape)


@pytest.mark.parametrize("shape", [(2, 2), (3,)], ids=str)
@pytest.mark.parametrize("check", [check_differences, check_freezing, check_closed])
def test_workers(check, shape):
    pool(4 if len(shape) == 2 else 3).run(check, shape)


def lose_one(shape, gathers, how):
    """(error's type, seconds) on each worker that is left, when the last one dies or stops in the middle of its training."""
    model = sharded(shape)
    attachment = thinwire.torch.attach(model, "casq:bits=2", gathers=gathers, timeout=timedelta(seconds=6))
    for step in range(2):
        loss_of(model, step).backward()
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL if how == "die" else signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises((PeerError, RuntimeError)) as caught:
        for step in range(2, 5):
            loss_of(model, step).backward()
    seconds = time.monotonic() - start
    state = attachment.state_dict(all_ranks=False)
    assert all(torch.isfinite(row["residual"]).all() for row in state["parameters"].values())
    if isinstance(caught.value, PeerError):
        with pytest.raises(StateError, match="of no further use"):
            attachment.check_usable()
    attachment.close()
    return type(caught.value).__name__, seconds


@pytest.mark.parametrize(("shape", "gathers"), [((3, 1), None), ((3,), None), ((3,), "casq:bits=2")], ids=str)
@pytest.mark.parametrize("how", ["die", "stop"])
def test_a_lost_worker_ends_the_others(shape, gathers, how):
    workers = WorkerPool(3, timeout=8)
    try:
        workers.begin(lose_one, shape, gathers, how)
        for rank in range(2):
            (kind, seconds), failure = workers.answer(rank, 100)
            assert failure is None, failure
            assert seconds < 20
            assert kind in ("PeerError", "RuntimeError", "DistBackendError")
    finally:
        workers.kill()


def raise_on_one(shape):
    """A worker that fails by itself: the others know at once, by PeerError or, where FSDP waits for it, by what the backend says."""
    model = sharded(shape)
    attachment = thinwire.torch.attach(model, "casq:bits=2", timeout=60)
    loss_of(model, 0).backward()
    bad = dist.get_rank() == 0
    if bad:
        attachment._reducer = Broken(attachment._reducer)
    start = time.monotonic()
    with pytest.raises(KeyError if bad else (PeerError, RuntimeError)):
        loss_of(model, 1).backward()
        loss_of(model, 2).backward()
    attachment.state_dict(all_ranks=False)
    attachment.close()
    return time.monotonic() - start


class Broken:
    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def reduce(self, *_):
        raise KeyError("my own fault")


@pytest.mark.parametrize("shape", [(3, 1), (3,)], ids=str)
def test_a_worker_that_fails_ends_the_others(shape):
    workers = WorkerPool(3)
    try:
        workers.begin(raise_on_one, shape)
        for rank in range(3):
            seconds, failure = workers.answer(rank, 100)
            assert failure is None, failure
            assert seconds < 20
    finally:
        workers.kill()
