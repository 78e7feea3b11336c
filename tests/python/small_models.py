"""Models and batches for tests of the hook: small, but with several buckets, and of all kinds."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 48
BUCKET_MB = 0.01  # about one layer


def layers(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(5)], nn.Linear(WIDTH, 3)).to(dtype)


def batch(step, rank, dtype=torch.float32, size=8):
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank)).to(dtype)


def ddp(module=None, **options):
    return DistributedDataParallel(module or layers(), **({"bucket_cap_mb": BUCKET_MB} | options))


def backward(model, *inputs):
    model(*inputs).float().square().mean().backward()


def gradients(model):
    """Flat, in float32; what has no gradient counts as NaN."""
    parts = [torch.full_like(p, torch.nan) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.flatten().float() for part in parts])


def train(model, steps, rank, optimiser=None, first=0):
    """Returns every step's gradients. Plain SGD unless told."""
    optimiser = optimiser or torch.optim.SGD(model.parameters(), lr=0.05)
    taken = []
    for step in range(first, first + steps):
        optimiser.zero_grad()
        backward(model, batch(step, rank))
        taken.append(gradients(model))
        optimiser.step()
    return taken


class Given(nn.Module):
    """Parameters, by name and shape, whose gradients are what is given: NumPy arrays by name."""

    def __init__(self, shapes):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, gradients):
        return sum((parameter * torch.as_tensor(gradients[name])).sum() for name, parameter in self.named_parameters())


class Branches(nn.Module):
    """Uses some of its branches only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, inputs, used):
        return sum(self.branches[index](inputs) for index in used)


class Mixed(nn.Module):
    """Parameters of three types, a tied one, a scalar, an empty one and one that is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.third = nn.Linear(WIDTH, WIDTH, dtype=torch.float16)
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.tied.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, inputs):
        values = self.tied(self.frozen(self.first(inputs)))
        return self.third(self.second(values.bfloat16()).half()).float() * self.scale + self.empty.sum()
