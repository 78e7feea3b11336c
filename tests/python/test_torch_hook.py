"""The hook at work: what it gives DDP, in all the ways in which DDP may be used."""

import gc
import threading
import weakref

import pytest
import thinwire
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import WIDTH, Branches, Mixed, backward, batch, ddp, gradients, layers, train
from thinwire import _native
from torch import nn
from worker_pool import WorkerPool, pool

OPTIONS = [
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"static_graph": True, "gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"bucket_cap_mb": 100},
    {"broadcast_buffers": False, "bucket_cap_mb": 0.001},
]

EXACT = ["none", "omnireduce"]  # by DDP's own all-reduce, and by lanes


def attached(model, spec="casq:bits=2", **options):
    """Two lanes without a trial, which would be half of the tests' time, unless told."""
    return thinwire.torch.attach(model, spec, **({"timeout": 30, "lanes": 2} | options))


def pair(spec, module=layers, attach_options=None, **options):
    """The same model twice: with thinwire and without."""
    ours, plain = ddp(module(), **options), ddp(module(), **options)
    return ours, plain, attached(ours, spec, **(attach_options or {}))


def check_exact_is_plain(spec, options):
    ours, plain, attachment = pair(spec, **options)
    for mine, theirs in zip(train(ours, 4, dist.get_rank()), train(plain, 4, dist.get_rank()), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)
    assert attachment.stats()["steps"] == 4
    attachment.close()
    return mine


def check_compressed_is_near(options):
    ours, plain, attachment = pair("casq:bits=4", **options)
    for mine, theirs in zip(train(ours, 3, dist.get_rank()), train(plain, 3, dist.get_rank()), strict=True):
        assert 0 < (mine - theirs).norm() < 0.3 * theirs.norm()
    attachment.close()
    return mine


def check_accumulation(view, spec):
    rank = dist.get_rank()
    ours, plain, attachment = pair(spec, gradient_as_bucket_view=view)
    for step in range(3):
        for model in (ours, plain):
            model.zero_grad()
            with model.no_sync():
                backward(model, batch(3 * step, rank))
                backward(model, batch(3 * step + 1, rank))
            backward(model, batch(3 * step + 2, rank))
        torch.testing.assert_close(gradients(ours), gradients(plain), rtol=1e-5, atol=1e-7)
    assert attachment.stats()["steps"] == 3
    attachment.close()


def check_unused(used_by_rank, view, spec):
    rank = dist.get_rank()
    ours, plain, attachment = pair(spec, Branches, find_unused_parameters=True, gradient_as_bucket_view=view)
    for step in range(3):
        for model in (ours, plain):
            model.zero_grad()
            backward(model, batch(step, rank), used_by_rank[rank % len(used_by_rank)])
        torch.testing.assert_close(gradients(ours), gradients(plain), rtol=1e-5, atol=1e-7, equal_nan=True)
    attachment.close()


def residuals(attachment):
    return {name: state["residual"] for name, state in attachment.state_dict(all_ranks=False)["parameters"].items()}


def check_unused_keeps_its_residual():
    rank = dist.get_rank()
    model = ddp(Branches(), find_unused_parameters=True)
    attachment = attached(model)
    backward(model, batch(0, rank), [0, 1, 2])
    before = {name: residual.clone() for name, residual in residuals(attachment).items()}
    model.zero_grad(set_to_none=True)
    backward(model, batch(1, rank), [0, 2])
    assert model.module.branches[1].weight.grad is None
    after = residuals(attachment)
    assert before["branches.1.weight"].norm() > 0
    assert torch.equal(before["branches.1.weight"], after["branches.1.weight"])
    assert not torch.equal(before["branches.0.weight"], after["branches.0.weight"])
    attachment.close()


def check_dtype(dtype, view):
    rank = dist.get_rank()
    ours, plain, attachment = pair("none", lambda: layers(dtype), gradient_as_bucket_view=view)
    for step in range(3):
        for model in (ours, plain):
            model.zero_grad()
            backward(model, batch(step, rank, dtype))
        assert all(parameter.grad.dtype == dtype for parameter in ours.parameters())
        tolerance = 1e-6 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(gradients(ours), gradients(plain), rtol=tolerance, atol=tolerance * 1e-1)
    attachment.close()
    return gradients(ours)


def check_mixed(spec):
    rank = dist.get_rank()
    ours, plain, attachment = pair(spec, Mixed)
    assert "tied.weight" not in attachment.compressors and "frozen.weight" not in attachment.compressors
    for step in range(3):
        for model in (ours, plain):
            model.zero_grad()
            backward(model, batch(step, rank))
        for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
            assert (mine.grad is None) == (theirs.grad is None)
            if mine.grad is not None:
                assert mine.grad.dtype == mine.dtype
                assert (mine.grad - theirs.grad).norm() <= (0.02 if spec == "none" else 0.5) * theirs.grad.norm()
    attachment.close()


def check_channels_last():
    def convolutions():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)).to(memory_format=torch.channels_last)

    ours, plain, attachment = pair("omnireduce", convolutions)
    assert dict(attachment._parameters.layout)["1.weight"] == [16, 3, 3, 16]  # as in memory
    for step in range(3):
        images = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        for model in (ours, plain):
            model.zero_grad()
            backward(model, images.to(memory_format=torch.channels_last))
        torch.testing.assert_close(gradients(ours), gradients(plain), rtol=1e-4, atol=1e-6)
    attachment.close()


def check_buckets_do_not_matter(cap, lanes):
    model = ddp(bucket_cap_mb=cap)
    # Floats that are summed by the engine would be rounded in another order.
    attachment = attached(model, "casq:bits=2", lanes=lanes, small_uncompressed=False)
    taken = torch.stack(train(model, 4, dist.get_rank()))
    attachment.close()
    return taken


def check_lanes_are_chosen(cap, spec, given, reference):
    model = ddp(bucket_cap_mb=cap)
    attachment = attached(model, spec, lanes=given, small_uncompressed=False)
    assert attachment.lanes == given or given is None and 2 <= attachment.lanes <= 4
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, attachment.lanes)
    assert len(set(said)) == 1
    taken = torch.stack(train(model, 2, dist.get_rank()))
    assert attachment.stats()["steps"] == 2  # the trial's noise counts for nothing,
    attachment.close()
    assert reference is None or torch.equal(taken, reference)  # and leaves no trace
    return taken


def check_residual_identity():
    """Sum of inputs = W x mean + sum of residuals, with what DDP really hands over."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = ddp()
    attachment = attached(model, small_uncompressed=False)
    total = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    for step in range(3):
        alone = layers()
        backward(alone, batch(step, rank))
        inputs = gradients(alone) + total
        model.zero_grad()
        backward(model, batch(step, rank))
        total = torch.cat(list(residuals(attachment).values()))
        sums = torch.stack([inputs, total])
        dist.all_reduce(sums)
        torch.testing.assert_close(world_size * gradients(model) + sums[1], sums[0], rtol=1e-4, atol=1e-6)
    attachment.close()
    return gradients(model)


def check_two_models_at_once():
    rank = dist.get_rank()
    models = [ddp(layers(seed=seed)) for seed in range(2)]
    attachments = [attached(model) for model in models]
    joint = [[] for _ in models]
    for step in range(3):  # the backward pass of one meets the other's
        for model in models:
            model.zero_grad()
        sum(model(batch(step, rank)).square().mean() for model in models).backward()
        for taken, model in zip(joint, models, strict=True):
            taken.append(gradients(model))
    for attachment in attachments:
        attachment.close()
    for seed in range(2):
        model = ddp(layers(seed=seed))
        with attached(model) as attachment:
            for step in range(3):
                model.zero_grad()
                backward(model, batch(step, rank))
                assert torch.equal(gradients(model), joint[seed][step])


def check_rules():
    model = ddp()
    attachment = attached(model, "casq:bits=2", rules={"0.*": "none", "1.bias": "bf16", "2.*": "casq:bits=4"})
    specs = attachment.compressors
    assert specs["0.weight"] == specs["0.bias"] == specs["3.bias"] == specs["5.weight"] == "none"  # 5.weight is small
    assert specs["1.bias"].startswith("bf16") and specs["1.weight"].startswith("casq:bits=2")
    assert specs["2.bias"].startswith("casq:bits=4")
    train(model, 2, dist.get_rank())
    share = attachment.stats()["compressed_share"]
    elements = dict((name, parameter.numel()) for name, parameter in model.module.named_parameters())
    assert share == pytest.approx(sum(elements[name] for name in specs if specs[name] != "none") / sum(elements.values()))
    attachment.close()


def check_non_finite(bad_rank):
    """A NaN on one worker: the bucket's mean is not finite anywhere, and residuals stay."""
    rank = dist.get_rank()
    model = ddp()
    attachment = attached(model)
    train(model, 2, rank)
    before = residuals(attachment)
    before = {name: residual.clone() for name, residual in before.items()}
    inputs = batch(9, rank)
    if rank == bad_rank:
        inputs[0, 0] = float("inf")
    model.zero_grad()
    backward(model, inputs)
    assert all(not parameter.grad.isfinite().all() for parameter in model.parameters())
    for name, residual in residuals(attachment).items():
        assert torch.equal(residual, before[name])
    assert attachment.stats()["non_finite"] > 0
    model.zero_grad()
    backward(model, batch(10, rank))
    assert gradients(model).isfinite().all()
    attachment.close()


def check_grad_scaler(bad_rank):
    rank = dist.get_rank()
    model = ddp()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    attachment = attached(model, scaler=scaler)
    unscaled = ddp()
    reference = attached(unscaled)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        inputs = batch(step, rank)
        spoilt = spoil_last_bucket(model) if step == 2 and rank == bad_rank else None
        before = [parameter.detach().clone() for parameter in model.parameters()]
        kept = {name: residual.clone() for name, residual in residuals(attachment).items()}
        optimiser.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        if spoilt is not None:
            spoilt.remove()
        finite = [bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters()]
        assert all(finite) if step != 2 else any(finite) and not all(finite)
        scaler.step(optimiser)
        scaler.update()
        stood_still = all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
        assert stood_still == (step == 2)
        assert scaler.get_scale() == (512.0 if step >= 2 else 1024.0)
        if step == 2:
            assert all(torch.equal(residual, kept[name]) for name, residual in residuals(attachment).items())
        if step == 0:  # the scale is a power of two: it leaves no trace in the residuals
            backward(unscaled, inputs)
            theirs = residuals(reference)
            assert all(torch.equal(residual, theirs[name]) for name, residual in residuals(attachment).items())
    attachment.close()
    reference.close()
    return gradients(model)


def spoil_last_bucket(model):
    """A NaN in the gradient that is ready last: other buckets are on their way, and finite."""
    first = next(model.parameters())
    return first.register_hook(lambda gradient: torch.full_like(gradient, float("nan")))


def check_failed_step_without_a_scaler(bad_rank, static_graph):
    """Nobody uses what the buckets that were finite brought."""
    model = ddp(static_graph=static_graph)
    attachment = attached(model)
    for step in range(3):
        spoilt = spoil_last_bucket(model) if step != 1 and dist.get_rank() == bad_rank else None
        model.zero_grad()
        backward(model, batch(step, dist.get_rank()))
        if spoilt is not None:
            spoilt.remove()
        for parameter in model.parameters():
            assert bool(torch.isfinite(parameter.grad).all()) == (step == 1)
    assert all(torch.isfinite(residual).all() for residual in residuals(attachment).values())
    assert attachment.stats()["failed_steps"] == 2
    attachment.close()


def check_future_passing():
    """The future comes at once, and holds the bucket's own memory when it is done."""
    model = ddp(bucket_cap_mb=100)
    attachment = attached(model, "none")
    seen = []
    average = attachment.average
    attachment.average = lambda bucket: seen.append((bucket.buffer(), average(bucket))) or seen[-1][1]
    backward(model, batch(0, dist.get_rank()))
    for buffer, future in seen:
        assert isinstance(future, torch._C.Future) and future.done()
        assert future.value().data_ptr() == buffer.data_ptr() and future.value().dtype == buffer.dtype
    attachment.close()


def check_gone_model_leaves_nothing():
    lanes = {thread for thread in threading.enumerate() if thread.name.startswith("thinwire")}
    model = ddp()
    attachment = weakref.ref(attached(model, lanes=2))
    train(model, 2, dist.get_rank())
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("thinwire")]) == len(lanes) + 2
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None and attachment() is None
    assert {thread for thread in threading.enumerate() if thread.name.startswith("thinwire")} == lanes


def same_on_all(results):
    return all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("spec", EXACT)
def test_what_loses_nothing_gives_ddps_own_gradients(world_size, options, spec):
    assert same_on_all(pool(world_size).run(check_exact_is_plain, spec, options))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_compressed_gradients_are_near_and_the_same_everywhere(options):
    assert same_on_all(pool(3).run(check_compressed_is_near, options))


@pytest.mark.parametrize("spec", EXACT)
@pytest.mark.parametrize("view", [False, True])
def test_gradients_accumulate_without_an_exchange_under_no_sync(view, spec):
    pool(2).run(check_accumulation, view, spec)


@pytest.mark.parametrize("spec", EXACT)
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("used", [[[0, 1, 2]], [[0, 2]], [[0], [0, 1]], [[2], [1]]], ids=str)
def test_unused_parameters_are_as_ddp_wants_them(used, view, spec):
    pool(2).run(check_unused, used, view, spec)


def test_a_parameter_that_nobody_used_keeps_its_residual():
    pool(2).run(check_unused_keeps_its_residual)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_keep_their_dtype(dtype, view):
    assert same_on_all(pool(2).run(check_dtype, dtype, view))


@pytest.mark.parametrize("spec", ["none", "casq:bits=3"])
def test_a_model_may_mix_types_and_tie_freeze_and_empty_its_parameters(spec):
    pool(2).run(check_mixed, spec)


def test_channels_last_models_are_exchanged_as_they_lie_in_memory():
    pool(2).run(check_channels_last)


def test_buckets_and_lanes_do_not_change_a_bit():
    runs = [pool(3).run(check_buckets_do_not_matter, cap, lanes)[0] for cap, lanes in ((0.01, 1), (0.03, 3), (100, 2))]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("spec", ["casq:bits=2", "casq:bits=2,reduce=auto"])
def test_lanes_are_chosen_by_a_trial(spec):
    given = pool(3).run(check_lanes_are_chosen, 0.01, spec, 1, None)[0]
    pool(3).run(check_lanes_are_chosen, 0.01, spec, None, given)


def check_unusual_defaults():
    model = ddp(bucket_cap_mb=0.01)
    torch.set_default_dtype(torch.float64)
    try:
        attached(model, lanes=None).close()
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_trial_does_not_depend_on_torchs_defaults():
    pool(2).run(check_unusual_defaults)


COMPRESSING = [row["name"] for row in thinwire.compressors() if row["name"] != "none"]


@pytest.mark.parametrize("spec", [*COMPRESSING, "s2:mode=exact/casq:bits=2", "gradiveq:rate=1"])
def test_every_compressor_stands_its_trial(spec):
    pool(2).run(check_lanes_are_chosen, 0.01, spec, None, None)


def test_two_buckets_need_no_trial():
    pool(2).run(check_lanes_are_chosen, 100, "casq:bits=2", None, None)


def test_lanes_follow_from_what_codec_and_wire_take():
    assert _native.choose_lanes(codec_seconds=0.001, wire_seconds=1.0, buckets=10, most=4) == 1
    assert _native.choose_lanes(codec_seconds=1.0, wire_seconds=1.0, buckets=10, most=4) == 4
    assert _native.choose_lanes(codec_seconds=1.0, wire_seconds=1.0, buckets=10, most=3) == 3


def test_residuals_hold_exactly_what_was_not_sent():
    assert same_on_all(pool(3).run(check_residual_identity))


def test_two_models_do_not_disturb_each_other():
    pool(2).run(check_two_models_at_once)


def test_rules_go_by_parameter_names():
    pool(2).run(check_rules)


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_a_nan_on_one_worker_shows_on_all_and_leaves_residuals_alone(bad_rank):
    pool(2).run(check_non_finite, bad_rank)


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_a_grad_scaler_skips_the_step_on_all_workers(bad_rank):
    assert same_on_all(pool(2).run(check_grad_scaler, bad_rank))


@pytest.mark.parametrize("static_graph", [False, True])
def test_a_failed_step_without_a_scaler_is_seen_in_every_parameter(static_graph):
    pool(2).run(check_failed_step_without_a_scaler, 1, static_graph)


def test_the_future_holds_the_bucket():
    pool(2).run(check_future_passing)


def test_a_model_that_is_gone_takes_its_lanes_along():
    pool(2).run(check_gone_model_leaves_nothing)


def test_the_width_gives_several_buckets():
    assert sum(p.numel() for p in layers().parameters()) * 4 / 1e6 > 3 * 0.01 and WIDTH * WIDTH > 1024
