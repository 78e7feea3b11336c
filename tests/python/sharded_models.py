"""Models that fully_shard() has prepared, small and of odd sizes, and what tests do with them beside one that is left plain."""

import functools
import math

import thinwire.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from worker_pool import pool

WIDTH = 47  # no number of shards divides it


class Network(nn.Module):
    """Fewer rows than workers, one parameter that is frozen, and a branch that is used when a batch says so."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.branch = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 3)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.layers[1].bias.requires_grad_(False)

    def forward(self, values, branch=False):
        for layer in self.layers:
            values = torch.tanh(layer(values)) * self.scale
        return self.last(values + self.branch(values) if branch else values)


def workers(shape):
    return pool(math.prod(shape))


def residuals(attachment):
    return {name: row["residual"] for name, row in attachment.state_dict(all_ranks=False)["parameters"].items()}


@functools.cache  # a thread of each of its groups wakes up a hundred times a second as long as the worker lives
def mesh_of(shape):
    """One dimension: all shard. Two: so many replicas of so many shards."""
    return init_device_mesh("cpu", shape, mesh_dim_names=("shard",) if len(shape) == 1 else ("replicate", "shard"))


def sharded(shape, model=None, **options):
    model, mesh = model or Network(), mesh_of(shape)
    for module in [*getattr(model, "layers", ()), *([model.branch] if hasattr(model, "branch") else [])]:
        fully_shard(module, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def batch(step, size=8, width=WIDTH):
    return torch.randn(size, width, generator=torch.Generator().manual_seed(1000 * step + dist.get_rank()))


def loss_of(model, step, **inputs):
    values = batch(step)
    return (model(values, **inputs).float() - values[:, :3].flip(1)).square().mean()


def shards(model):
    """This worker's part of all gradients; None where there is none."""
    return [None if p.grad is None else p.grad.to_local().clone() for p in model.parameters()]


def assert_same(found, expected, **tolerance):
    assert [one is None for one in found] == [one is None for one in expected]
    for one, other in zip(found, expected, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, equal_nan=True, **tolerance)


class Pair:
    """A model that thinwire is attached to, and one that is as it is, trained alike."""

    def __init__(self, shape, spec, model=Network, scaler=False, attach=None, **options):
        self.models = [sharded(shape, model(), **options) for _ in range(2)]
        self.scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2)] if scaler else [None, None]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in self.models]
        self.attachment = thinwire.torch.attach(self.models[0], spec, scaler=self.scalers[0], timeout=30, **(attach or {}))

    def step(self, run):
        """run(model, backward) does forward and backward passes. Returns both models' gradients."""
        taken = []
        for model, scaler, optimizer in zip(self.models, self.scalers, self.optimizers, strict=True):
            optimizer.zero_grad()
            run(model, (lambda loss, scaler=scaler: scaler.scale(loss).backward()) if scaler else torch.Tensor.backward)
            taken.append(shards(model))
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        return taken


def plain_run(step, **inputs):
    return lambda model, backward: backward(loss_of(model, step, **inputs))


def resumed(attached, move, path):
    """Gradients of a training's steps 3 to 5, twice: as it went on, and as it does of what it saved before them.

    attached() returns a new model and what is attached to it; move(model, step) changes the parameters.
    """
    last = dist.get_world_size() - 1
    own = path.with_suffix(f".{dist.get_rank()}")
    model, attachment = attached()
    for step in range(3):
        _take(model, move, step)
    torch.save(model.state_dict(), own)
    saved = attachment.state_dict(all_ranks=True, to=last)
    assert (saved is None) == (dist.get_rank() != last)
    if saved is not None:
        torch.save(saved, path)
    dist.barrier()
    went_on = [_take(model, move, step) for step in range(3, 6)]
    attachment.close()
    model, attachment = attached()
    model.load_state_dict(torch.load(own, weights_only=False))
    attachment.load_state_dict(torch.load(path, weights_only=True))
    goes_on = [_take(model, move, step) for step in range(3, 6)]
    assert attachment.state_dict(all_ranks=False)["steps"] == 6
    attachment.close()
    return went_on, goes_on


def _take(model, move, step):
    model.zero_grad()
    loss_of(model, step).backward()
    gradients = shards(model)
    move(model, step)
    return gradients
