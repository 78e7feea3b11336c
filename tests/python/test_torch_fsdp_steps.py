"""Steps that fail, states, bytes and ends of attachments to modules that fully_shard() has prepared."""

import math

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from sharded_models import WIDTH, Network, Pair, assert_same, loss_of, mesh_of, plain_run, residuals, resumed, sharded, shards, workers
from thinwire import StateError
from torch import nn
from torch.distributed.fsdp import fully_shard
from worker_pool import pool


def poisoned(step, rank):
    """One worker's loss is not finite."""

    def run(model, backward):
        loss = loss_of(model, step)
        if dist.get_rank() == rank:
            loss = loss * math.nan
        backward(loss)

    return run


def check_nan(shape, scaler):
    pair = Pair(shape, "casq:bits=2", scaler=scaler)
    for step in range(3):
        pair.step(plain_run(step))
    before = residuals(pair.attachment)
    assert any(residual.numel() for residual in before.values())
    held = [p.detach().to_local().clone() for p in pair.models[0].parameters()]
    ours, _ = pair.step(poisoned(3, dist.get_world_size() - 1))
    assert all(one.reshape(-1)[:1].isnan().all() for one in ours if one is not None)
    after = residuals(pair.attachment)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert pair.attachment.stats()["failed_steps"] == 1
    if scaler:
        assert all(torch.equal(p.to_local(), one) for p, one in zip(pair.models[0].parameters(), held, strict=True))
        assert pair.scalers[0].get_scale() == pair.scalers[1].get_scale() == 2.0**9
        ours, plain = pair.step(plain_run(4))
        assert all(one.isfinite().all() for one in ours if one is not None)
        assert any(not torch.equal(one, before[name]) for name, one in residuals(pair.attachment).items())
    pair.attachment.close()


@pytest.mark.parametrize("scaler", [False, True], ids=["", "scaler"])
@pytest.mark.parametrize("shape", [(2, 1), (2, 2), (3,)], ids=str)
def test_nan_fails_a_step_everywhere(shape, scaler):
    workers(shape).run(check_nan, shape, scaler)


class Halves(nn.Module):
    """The gradient's rows are the inputs' squares, so that a worker can spoil the rows of one shard."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))

    def forward(self, factors):
        return (self.weight * factors).sum()


def check_nan_in_one_shard(shape):
    model = fully_shard(Halves(), mesh=mesh_of(shape))
    attachment = thinwire.torch.attach(model, "casq:bits=2")
    torch.manual_seed(dist.get_rank())
    model(torch.randn(64, 64)).backward()
    before = residuals(attachment)
    model.zero_grad()
    factors = torch.randn(64, 64)
    factors[0, 5] = math.inf
    model(factors).backward()  # the first shard alone is not finite
    assert model.weight.grad.to_local().isnan().any()
    assert attachment.stats()["failed_steps"] == 1
    assert all(torch.equal(before[name], residual) for name, residual in residuals(attachment).items())
    attachment.close()


@pytest.mark.parametrize("shape", [(2, 2), (4,)], ids=str)
def test_a_shard_that_is_not_finite_fails_the_others(shape):
    workers(shape).run(check_nan_in_one_shard, shape)


def check_divide_factor(shape):
    models = [sharded(shape) for _ in range(2)]
    models[0].set_gradient_divide_factor(5.0)
    for layer in models[0].modules():
        if hasattr(layer, "set_gradient_divide_factor"):
            layer.set_gradient_divide_factor(5.0)
            layer.set_force_sum_reduction_for_comms(True)
    attachment = thinwire.torch.attach(models[0], "none")
    for model in models:
        loss_of(model, 0).backward()
    size = dist.get_world_size()
    assert_same(shards(models[0]), [None if one is None else one * size / 5.0 for one in shards(models[1])], rtol=1e-4, atol=1e-6)
    attachment.close()


@pytest.mark.parametrize("shape", [(2, 2), (4,)], ids=str)
def test_a_divide_factor_of_the_scripts(shape):
    workers(shape).run(check_divide_factor, shape)


def check_state(shape, path):
    def attached():
        model = sharded(shape)
        return model, thinwire.torch.attach(model, "casq:bits=2")

    for one, other in zip(*resumed(attached, lambda model, step: None, path), strict=True):
        assert_same(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2, 1), (2, 2), (3,)], ids=str)
def test_a_saved_state_goes_on_with_the_same_bits(shape, tmp_path):
    workers(shape).run(check_state, shape, tmp_path / "state.pt")


def save(shape, path):
    model = sharded(shape)
    attachment = thinwire.torch.attach(model, "casq:bits=2", small_uncompressed=False)
    loss_of(model, 0).backward()
    state = attachment.all_ranks.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, path)
    attachment.close()
    return residuals(attachment)


def load(shape, path):
    attachment = thinwire.torch.attach(sharded(shape), "casq:bits=2", small_uncompressed=False)
    attachment.all_ranks.load_state_dict(torch.load(path, weights_only=True))
    attachment.close()
    return residuals(attachment)


def test_another_number_of_replicas(tmp_path):
    saved = workers((4, 1)).run(save, (4, 1), tmp_path / "state.pt")
    for loaded in workers((2, 1)).run(load, (2, 1), tmp_path / "state.pt"):
        for name, residual in loaded.items():
            torch.testing.assert_close(residual, sum(one[name] for one in saved) / 4)


def load_other_shards(shape, path):
    attachment = thinwire.torch.attach(sharded(shape), "casq:bits=2", small_uncompressed=False)
    with pytest.raises(StateError, match="shards"):
        attachment.all_ranks.load_state_dict(torch.load(path, weights_only=True))
    attachment.close()


def test_another_number_of_shards(tmp_path):
    workers((2, 2)).run(save, (2, 2), tmp_path / "state.pt")
    workers((4, 1)).run(load_other_shards, (4, 1), tmp_path / "state.pt")


def check_bytes(shape, closes):
    """FSDP's own all-reduce must not run beside thinwire's; and must again, once the attachment is closed."""
    sizes, real = [], dist.all_reduce

    def counted(tensor, *arguments, **options):
        sizes.append(dist.get_world_size(options.get("group")))
        return real(tensor, *arguments, **options)

    pair = Pair(shape, "none")
    dist.all_reduce = counted
    try:
        loss_of(pair.models[0], 0).backward()
        assert set(sizes) <= {1}
        elements = sum(pair.attachment._parameters.elements[index] for index in range(len(pair.attachment.compressors)))
        branch = sum(-(-size // shape[1]) * rest for size, rest in ((WIDTH, WIDTH), (WIDTH, 1)))
        sent = 2 * (shape[0] - 1) / shape[0] * 4 * (elements - branch)
        assert pair.attachment.stats()["traffic_bytes"] == pytest.approx(sent)
        pair.attachment.close()
        if closes:
            pair.models[0].zero_grad()
            sizes.clear()
            loss_of(pair.models[0], 0).backward()
            assert set(sizes) == {shape[0]}
            loss_of(pair.models[1], 0).backward()
            assert_same(*map(shards, pair.models), rtol=0, atol=0)
            thinwire.torch.attach(pair.models[0], "none").close()
    finally:
        dist.all_reduce = real


def check_halved(shape):
    """A reduce-scatter sends half of what an all-reduce does; then FSDP's own is there again."""
    pair = Pair(shape, "none")
    loss_of(pair.models[0], 0, branch=True).backward()
    size = dist.get_world_size()
    rows = sum(-(-p.shape[0] // size) * p[0].numel() for p in Network().parameters() if p.requires_grad)
    stats = pair.attachment.stats()
    assert stats["plain_bytes"] == pytest.approx((size - 1) * 4 * rows)
    assert stats["plain_bytes"] <= stats["traffic_bytes"] < stats["plain_bytes"] + 64 * stats["rounds"] * (size - 1)
    pair.attachment.close()
    pair.models[0].zero_grad()
    for model in pair.models:
        loss_of(model, 1).backward()
    assert_same(*map(shards, pair.models), rtol=0, atol=0)
    thinwire.torch.attach(pair.models[0], "none").close()


@pytest.mark.parametrize("shape", [(2,), (3,)], ids=str)
def test_bytes_of_a_reduce_scatter(shape):
    workers(shape).run(check_halved, shape)


@pytest.mark.parametrize("shape", [(2, 1), (2, 2)], ids=str)
def test_bytes_and_close(shape):
    workers(shape).run(check_bytes, shape, True)


def check_aborted(shape):
    """A script that catches an exception of a backward pass, on all workers, goes on."""
    pair = Pair(shape, "casq:bits=2")
    pair.step(plain_run(0))
    before = residuals(pair.attachment)

    def stop(*_):
        raise KeyError("in the middle")

    for model in pair.models[:1]:
        handle = model.layers[0].register_full_backward_pre_hook(stop)
        with pytest.raises(KeyError):
            loss_of(model, 1).backward()
        handle.remove()
        model.reset_iter_state()
    assert all(torch.equal(before[name], residual) for name, residual in residuals(pair.attachment).items())
    ours, _ = pair.step(plain_run(2))
    assert all(one.isfinite().all() for one in ours if one is not None)
    pair.attachment.close()


def test_aborted_backward_passes():
    pool(2).run(check_aborted, (2, 1))
