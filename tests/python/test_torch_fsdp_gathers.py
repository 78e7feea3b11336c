"""attach(gathers=...): parameters that FSDP gathers travel by how much they have changed."""

import math

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from sharded_models import Network, Pair, assert_same, loss_of, mesh_of, plain_run, resumed, sharded, shards, workers
from small_models import ddp
from test_torch_fsdp import PLAIN, check_converges
from test_torch_fsdp_refusals import refused
from thinwire import StateError
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

SHAPES = [(2,), (3,), (4,)]


def used(model):
    """The parameters that a forward pass would compute with, which are gathered for this."""
    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.unshard()
    found = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for part in parts:
        part.reshard()
    return found


def exact(model):
    return {name: parameter.detach().full_tensor().clone() for name, parameter in model.named_parameters()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, one in found.items():
        assert torch.equal(one, expected[name]), name


def check_exact(shape, options):
    pair = Pair(shape, "none", attach={"gathers": "none"}, **options)
    tolerance = PLAIN if not options.get("mp_policy") else {"rtol": 0.02, "atol": 2e-3}
    for step in range(4):
        assert_same(*pair.step(plain_run(step, branch=step == 2)), **tolerance)
    assert pair.attachment.stats()["gathered"]["failed_steps"] == 0
    pair.attachment.close()


EXACT = {
    "resharded": {},
    "kept": {"reshard_after_forward": False},
    "bf16": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
    "fp16": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.float16)},
}


@pytest.mark.parametrize("options", EXACT)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_none_is_as_plain(shape, options):
    workers(shape).run(check_exact, shape, EXACT[options])


def test_shards_of_fewer_workers_after_forward():
    workers((4,)).run(check_exact, (4,), {"reshard_after_forward": 2})


def check_alone():
    """It gathers nothing."""
    pair = Pair((1,), "none", attach={"gathers": "casq:bits=2"})
    for step in range(3):
        assert_same(*pair.step(plain_run(step)), **PLAIN)
    assert "gathered" not in pair.attachment.stats()
    pair.attachment.close()


def test_a_worker_that_is_alone():
    workers((1,)).run(check_alone)


def move(model, step):
    """Every worker's shards, by noise of their own."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local()
            local.add_(0.1 * torch.randn(local.shape, generator=generator))


def check_reference(shape):
    """W~ <- W~ + C(w - W~), as the papers have it."""
    model = sharded(shape)
    with thinwire.torch.attach(model, "none", gathers="bf16", measure_every=1) as attachment:
        got = exact(model)
        assert_equal(used(model), got)
        for step in range(5):
            move(model, step)
            now = exact(model)
            for name, one in now.items():
                change = one - got[name]
                got[name] = got[name] + (change.bfloat16().float() if one.dim() == 2 and one.numel() >= 1024 else change)
            assert_equal(used(model), got)
        assert any(not torch.equal(one, now[name]) for name, one in got.items())
        assert 1e-7 < attachment.stats()["gathered"]["compression_error"] < 1e-4


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_all_have_got_follows_the_formula(shape):
    workers(shape).run(check_reference, shape)


def check_all_compute_with_the_same(shape, spec):
    model = sharded(shape, reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with thinwire.torch.attach(model, "casq:bits=2", gathers=spec):
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        everyones = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, used(model))
        for one in everyones:
            assert_equal(one, everyones[0])


@pytest.mark.parametrize("spec", ["casq:bits=2", "casq:rate=1", "qsgd:bits=4", "topk:density=0.1"])
def test_all_workers_compute_with_the_same(spec):
    workers((3,)).run(check_all_compute_with_the_same, (3,), spec)


@pytest.mark.parametrize("gathers", ["casq:bits=4", "casq:rate=3"])
@pytest.mark.parametrize("shape", [(2,), (4,)], ids=str)
def test_compressed_training_comes_as_far(shape, gathers):
    for stats in workers(shape).run(check_converges, shape, "casq:bits=2", 36, {"gathers": gathers}):
        assert stats["gathered"]["ratio"] > 2.5 and stats["gathered"]["non_finite"] == 0


def attached(shape, **options):
    model = sharded(shape, **options)
    return model, thinwire.torch.attach(model, "casq:bits=2", gathers="casq:bits=2", timeout=30)


def check_loaded_parameters(shape):
    """They are no small change of those before."""
    model, attachment = attached(shape)
    for step in range(2):
        move(model, step)
        used(model)
    other = {name: (100 * torch.ones_like(one)) for name, one in model.state_dict().items()}
    model.load_state_dict(other)
    assert_equal(used(model), exact(model))
    attachment.close()


def check_not_finite(shape):
    """All see a NaN of any worker's parameters, as they would without thinwire, and what replaces it."""
    model, attachment = attached(shape)
    used(model)
    last = dist.get_rank() == dist.get_world_size() - 1
    weight = model.layers[0].weight.detach().to_local()
    move(model, 0)
    if last:
        kept = weight[0, 0].item()
        weight[0, 0] = math.nan
    assert used(model)["layers.0.weight"].isnan().sum() == 1
    if last:
        weight[0, 0] = kept
    name = "layers.0.weight"
    assert torch.equal(used(model)[name], exact(model)[name])
    assert attachment.stats()["gathered"]["failed_steps"] == 1
    attachment.close()


def check_inference(shape):
    """In which all may be got anew."""
    model, attachment = attached(shape)
    for step in range(3):
        model.zero_grad()
        loss_of(model, step).backward()
        move(model, step)
        if step == 1:
            model.load_state_dict(model.state_dict())
        with torch.inference_mode():
            loss_of(model, step)
    assert all(one is None or one.isfinite().all() for one in shards(model))
    attachment.close()


def check_once_a_step(shape):
    """Three modules and what is left; what a backward pass gathers has not changed since the forward pass."""
    model, attachment = attached(shape)
    gathers = []
    for step in range(4):
        loss_of(model, step).backward()
        move(model, step)
        gathers.append(attachment.stats()["gathered"]["reductions"])
    assert gathers == [0, 4, 8, 12]
    attachment.close()


def check_closed(shape):
    model, attachment = attached(shape)
    for step in range(2):
        move(model, step)
        used(model)
    attachment.close()
    attachment.close()
    assert_equal(used(model), exact(model))
    with thinwire.torch.attach(model, "none", gathers="casq:bits=2"):
        assert_equal(used(model), exact(model))


def check_accumulated_and_checkpointed(shape):
    """Against what the same training does without either."""
    models = [Network(), Network()]
    models[1].layers = nn.ModuleList([checkpoint_wrapper(layer, checkpoint_impl=CheckpointImpl.NO_REENTRANT) for layer in models[1].layers])
    taken = []
    for whole in models:
        model = sharded(shape, whole)
        with thinwire.torch.attach(model, "none", gathers="casq:bits=4"):
            for step in range(3):
                model.zero_grad()
                model.set_requires_gradient_sync(False)
                loss_of(model, 2 * step).backward()
                model.set_requires_gradient_sync(True)
                loss_of(model, 2 * step + 1).backward()
                taken.append(shards(model))
                move(model, step)
    for one, other in zip(taken[:3], taken[3:], strict=True):
        assert_same(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "check", [check_loaded_parameters, check_not_finite, check_inference, check_once_a_step, check_closed, check_accumulated_and_checkpointed]
)
@pytest.mark.parametrize("shape", [(2,), (3,)], ids=str)
def test_it_holds(shape, check):
    workers(shape).run(check, shape)


def check_state(shape, path):
    for one, other in zip(*resumed(lambda: attached(shape), move, path), strict=True):
        assert_same(one, other, rtol=0, atol=0)
    spoilt = torch.load(path, weights_only=True)
    name = f"gathered:layers.0.weight@{dist.get_rank()}"
    row = spoilt["ranks"][dist.get_rank()]["parameters"][name]
    row["residual"] = row["residual"][1:]
    _, attachment = attached(shape)
    with pytest.raises(StateError, match="what all had got of .*layers.0.weight"):
        attachment.load_state_dict(spoilt)
    attachment.close()
    without = thinwire.torch.attach(sharded(shape), "casq:bits=2")
    with pytest.raises(StateError, match="gathered"):
        without.load_state_dict(torch.load(path, weights_only=True))
    without.close()


@pytest.mark.parametrize("shape", [(2,), (3,)], ids=str)
def test_a_saved_state_goes_on_with_the_same_bits(shape, tmp_path):
    workers(shape).run(check_state, shape, tmp_path / "state.pt")


def check_refusals():
    refused("gathers = 'bf16'; allowed for DDP: None", ddp(nn.Linear(4, 4)), gathers="bf16")
    refused("gathers = 'bf16' on a mesh of two dimensions.*within a host", sharded((2, 2)), "casq:bits=2", gathers="bf16")
    refused("gathers = 'auto'; allowed: a spec", sharded((4,)), "casq:bits=2", gathers="auto")
    refused("'powersgd:.*averages for all workers alike.*take one", sharded((4,)), "casq:bits=2", gathers="powersgd")
    refused("compressor 'nothing'", sharded((4,)), "casq:bits=2", gathers="nothing")
    mixed = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).bfloat16())
    refused("several types together.*give all of a module one type", fully_shard(mixed, mesh=mesh_of((4,))), "casq:bits=2", gathers="bf16")
    refused("gathers torch.float64", sharded((4,), nn.Linear(8, 8).double()), "none", gathers="bf16")
    model = sharded((4,))
    model.set_custom_all_gather(object())
    refused("has an all-gather of its own", model, "casq:bits=2", gathers="bf16")
    refused("do not agree: gathered parameters", sharded((4,)), "casq:bits=2", gathers="bf16" if dist.get_rank() else "casq:bits=2")


def test_what_cannot_be_is_refused():
    workers((4,)).run(check_refusals)
