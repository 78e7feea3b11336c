"""attach() to modules that fully_shard() has prepared: beside the same modules without, on meshes of one and of two dimensions."""

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from sharded_models import WIDTH, Network, Pair, assert_same, loss_of, mesh_of, plain_run, residuals, sharded, shards, workers
from small_models import ddp
from thinwire import canonical_spec
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

TWO = [(2, 1), (2, 2), (3, 1), (4, 1), (1, 3), (1, 1)]
ONE = [(1,), (2,), (3,), (4,)]
SOME = [(2, 2), (3, 1), (3,), (4,)]
PLAIN = {"rtol": 1e-5, "atol": 1e-6}  # sums in another order, in the course of some steps


def check_exact(shape):
    pair = Pair(shape, "none")
    for step in range(4):
        assert_same(*pair.step(plain_run(step, branch=step == 2)), **PLAIN)
    assert pair.attachment.stats()["steps"] == 4
    pair.attachment.close()


@pytest.mark.parametrize("shape", [*TWO, *ONE], ids=str)
def test_none_is_exact(shape):
    workers(shape).run(check_exact, shape)


def check_the_mean(shape, dtype):
    """Against gradients of models that are whole: Gloo's AVG was reported to return sums (PyTorch #162338)."""
    whole = Network()
    loss_of(whole, 0, branch=True).backward()
    model = sharded(shape, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
    attachment = thinwire.torch.attach(model, "none")
    loss_of(model, 0, branch=True).backward()
    for parameter, one in zip(whole.parameters(), model.parameters(), strict=True):
        if not parameter.requires_grad:
            continue
        mean = parameter.grad.double()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        tolerance = {"rtol": 0.02, "atol": 2e-3} if dtype in (torch.bfloat16, torch.float16) else PLAIN
        torch.testing.assert_close(one.grad.full_tensor(), mean.float(), **tolerance)
    attachment.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(2, 2), (3, 1), (2,), (3,)], ids=str)
def test_none_is_the_mean(shape, dtype):
    workers(shape).run(check_the_mean, shape, dtype)


def check_converges(shape, spec, steps, attach=None):
    """As far as plain DDP, whose steps cost less than plain FSDP's, and bring the same."""
    models = [sharded(shape), ddp(Network(), find_unused_parameters=True)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]

    def losses():
        return [sum(loss_of(model, step).item() for step in range(6)) for model in models]

    with thinwire.torch.attach(models[0], spec, timeout=30, **(attach or {})) as attachment:
        first, _ = losses()
        for step in range(steps):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss_of(model, step % 6).backward()
                optimizer.step()
        ours, plain = losses()
        assert plain < 0.1 * first and first - ours > 0.9 * (first - plain), (first, ours, plain)
        assert "casq" not in spec or attachment.compressors["layers.0.weight"] == canonical_spec(spec)
        assert attachment.compressors["scale"] == "none"
        stats = attachment.stats()
        assert stats["ratio"] > 4 and stats["non_finite"] == 0
        return stats


@pytest.mark.parametrize(("spec", "steps"), [("casq:bits=2", 36), ("topk:density=0.05", 60)])
@pytest.mark.parametrize("shape", SOME, ids=str)
def test_compressed_training_comes_as_far(shape, spec, steps):
    workers(shape).run(check_converges, shape, spec, steps)


def check_conservation(shape, spec):
    """What all workers had, less the means, is in their residuals."""
    pair = Pair(shape, spec, attach={"small_uncompressed": False})
    missing = None
    for step in range(5):
        ours, plain = pair.step(plain_run(step, branch=step != 2))
        lost = [0 if one is None else other - one for one, other in zip(ours, plain, strict=True)]
        missing = lost if missing is None else [before + now for before, now in zip(missing, lost, strict=True)]
        pair.models[1].load_state_dict(pair.models[0].state_dict())
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, residuals(pair.attachment))
    rank, owners = dist.get_rank(), shape[-1]
    for (name, parameter), lost in zip(pair.models[0].named_parameters(), missing, strict=True):
        if not parameter.requires_grad:
            continue
        if len(shape) == 2:
            kept = [residual[name] for other, residual in enumerate(everyones) if other % owners == rank % owners]
        else:
            kept = [residual[f"{name}@{rank}"] for residual in everyones]
        mean = (sum(kept) / len(kept))[: lost.numel()].view_as(lost)
        torch.testing.assert_close(mean, lost, rtol=1e-3, atol=1e-5)
        assert lost.numel() < 10 or lost.abs().max() > 1e-4
    pair.attachment.close()


@pytest.mark.parametrize("spec", ["casq:bits=1", "casq:rate=1", "topk:density=0.1"])
@pytest.mark.parametrize("shape", SOME, ids=str)
def test_what_is_lost_is_kept(shape, spec):
    workers(shape).run(check_conservation, shape, spec)


def check_mixed(shape, policy, spec):
    pair = Pair(shape, spec, mp_policy=policy)
    for step in range(3):
        ours, plain = pair.step(plain_run(step))
        if spec == "none":
            assert_same(ours, plain, rtol=0.02, atol=2e-3)
        assert all(one.dtype == torch.float32 and one.isfinite().all() for one in ours if one is not None)
    pair.attachment.close()


POLICIES = {
    "bf16 reduced": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
    "bf16, float32 reduced": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "fp16 reduced": MixedPrecisionPolicy(reduce_dtype=torch.float16),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", [(2, 2), (4,)], ids=str)
def test_mixed_precision(shape, policy):
    for spec in ("none", "casq:bits=4"):
        workers(shape).run(check_mixed, shape, POLICIES[policy], spec)


def accumulate(model, backward):
    model.set_requires_gradient_sync(False)
    model.set_is_last_backward(False)
    backward(loss_of(model, 1))
    model.set_requires_gradient_sync(True)
    backward(loss_of(model, 2))
    model.set_is_last_backward(True)
    backward(loss_of(model, 3))


def accumulate_without_all_reduce(model, backward):
    model.set_requires_all_reduce(False)
    backward(loss_of(model, 1))
    model.set_requires_all_reduce(True)
    backward(loss_of(model, 2))


def check_accumulation(shape):
    for run, steps in ((accumulate, 2), (accumulate_without_all_reduce, 1 if len(shape) == 2 else 2)):
        pair = Pair(shape, "none")
        for _ in range(2):
            assert_same(*pair.step(run), **PLAIN)
        assert pair.attachment.stats()["steps"] == 2 * steps
        pair.attachment.close()


@pytest.mark.parametrize("shape", [(2, 2), (2, 1)], ids=str)
def test_gradients_are_accumulated(shape):
    workers(shape).run(check_accumulation, shape)


class Twice(nn.Module):
    """Calls a module twice, so that FSDP reduces it twice in a backward pass; and two that are sharded as one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, values):
        for _ in range(2):
            values = torch.tanh(self.layers[0](values))
        return self.other(torch.tanh(self.one(values)))


def checkpointed(implementation):
    model = Network()
    model.layers = nn.ModuleList([checkpoint_wrapper(layer, implementation) for layer in model.layers])
    return model


def check_passes(shape):
    for make in (Twice, lambda: checkpointed(CheckpointImpl.NO_REENTRANT)):
        pair = Pair(shape, "none", make)
        assert not any("checkpoint" in name for name in pair.attachment.compressors)
        for step in range(3):
            assert_same(*pair.step(plain_run(step)), **PLAIN)
        pair.attachment.close()


@pytest.mark.parametrize("shape", SOME, ids=str)
def test_modules_that_are_called_twice_or_checkpointed(shape):
    workers(shape).run(check_passes, shape)


def check_grouped(shape):
    models = []
    for _ in range(2):
        model, mesh = Twice(), mesh_of(shape)
        fully_shard([model.one, model.other], mesh=mesh, reshard_after_forward=False)
        models.append(fully_shard(model, mesh=mesh))
    attachment = thinwire.torch.attach(models[0], "none")
    assert set(attachment.compressors) == {name for name, _ in Twice().named_parameters()}
    for model in models:
        loss_of(model, 0).backward()
    assert_same(*map(shards, models), **PLAIN)
    attachment.close()


@pytest.mark.parametrize("shape", [(2, 2), (4,)], ids=str)
def test_modules_that_are_sharded_as_one(shape):
    workers(shape).run(check_grouped, shape)


class Conditional(nn.Module):
    """Of two parameters that are sharded together one is used where a worker wants it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.base = nn.Linear(WIDTH, 3)
        self.extra = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, values, used):
        values = self.base(values)
        return values + values @ self.extra[:3, :3] if used else values


def check_unused(shape, spec):
    pair = Pair(shape, spec, Conditional)
    rank = dist.get_rank()
    for step, used in enumerate([True, False, True]):  # by all
        ours, plain = pair.step(plain_run(step, used=used))
        assert [one is None for one in ours] == [one is None for one in plain] == [not (used or parameter != 0) for parameter in range(3)]
    for model in pair.models:
        model.set_reduce_scatter_unused_params(True)
    for step in range(3, 6):  # by some
        ours, plain = pair.step(plain_run(step, used=(rank + step) % 2 == 0))
        if spec == "none":
            assert_same(ours, plain, **PLAIN)
    pair.attachment.close()


@pytest.mark.parametrize("spec", ["none", "casq:bits=2"])
@pytest.mark.parametrize("shape", [(2, 2), (3,)], ids=str)
def test_parameters_that_some_workers_do_not_use(shape, spec):
    workers(shape).run(check_unused, shape, spec)


def check_compiled(shape):
    pair = Pair(shape, "none")
    pair.models[0] = torch.compile(pair.models[0], backend="eager")
    for step in range(2):
        assert_same(*pair.step(plain_run(step)), rtol=1e-4, atol=1e-6)
    assert pair.attachment.stats()["steps"] == 2
    pair.attachment.close()


@pytest.mark.parametrize("shape", [(2, 1), (2,)], ids=str)
def test_compiled_afterwards(shape):
    workers(shape).run(check_compiled, shape)
