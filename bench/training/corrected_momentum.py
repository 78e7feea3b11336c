"""Momentum correction (Lin et al., Deep Gradient Compression, 2018, section 3.1) before any compressor, as the benchmark measures it."""

from __future__ import annotations

import torch
from torch import nn


def take_from(optimizer: torch.optim.SGD) -> None:
    """Every worker accumulates its own momentum from now on, and its gradients, which DDP's hook compresses, are what `optimizer` would have
    made of them: weight decay, momentum, and Nesterov's if it has that. Of those `optimizer` has none any more: without compression it does as before.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.register_hook(_accumulates(parameter, group["momentum"], group["weight_decay"], group["nesterov"]))
        group |= {"momentum": 0, "weight_decay": 0, "nesterov": False}


def _accumulates(parameter: nn.Parameter, momentum: float, weight_decay: float, nesterov: bool):
    """What autograd calls with the parameter's gradient before DDP sees it; each parameter has a velocity of its own."""
    velocity = torch.zeros_like(parameter)

    def accumulate(gradient: torch.Tensor) -> torch.Tensor:
        decayed = gradient.add(parameter.detach(), alpha=weight_decay)
        velocity.mul_(momentum).add_(decayed)
        return decayed.add(velocity, alpha=momentum) if nesterov else velocity.clone()

    return accumulate
