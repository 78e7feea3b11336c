"""Small trainings by LocalSteps, and what tests look at in them."""

import io

import thinwire.torch
import torch
import torch.distributed as dist
from torch import nn

TIMEOUT = 5  # seconds
INPUTS, HIDDEN, OUTPUTS, BATCH = 8, 40, 30, 6
INNER_RATE = 0.05


def deep_linear(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=INNER_RATE)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def adagrad(model):
    return torch.optim.Adagrad(model.parameters(), lr=0.05)


def average(parameters):
    """Plain local SGD."""
    return torch.optim.SGD(parameters, lr=1)


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(BATCH, INPUTS, generator=generator), torch.randn(BATCH, OUTPUTS, generator=generator)


def inner_step(model, optimizer, step, rank):
    inputs, targets = batch(step, rank)
    optimizer.zero_grad()
    (model(inputs) - targets).square().mean().backward()
    optimizer.step()


def flat(model):
    return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])


def train(local, model, optimizer, steps, first=1):
    for step in range(first, first + steps):
        inner_step(model, optimizer, step, dist.get_rank())
        local.step()


def local_steps(model, optimizer, every, **options):
    return thinwire.torch.LocalSteps(model, optimizer, every, **({"timeout": 30} | options))


def residuals(local):
    return {name: row["residual"] for name, row in local.state_dict(all_ranks=False)["parameters"].items()}


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()
