"""Muon for some matrices, and another optimizer for all else, as one: what MuLoCo trains by between two averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


class MuonBeside(torch.optim.Optimizer):
    """torch.optim.Muon of `matrices` at learning rate `rate`, and what `make` makes of a list of the others."""

    def __init__(self, parameters: Sequence[nn.Parameter], matrices: Sequence[nn.Parameter], rate: float,
                 make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
        theirs = {id(matrix) for matrix in matrices}
        self._parts = [torch.optim.Muon(matrices, lr=rate, weight_decay=0.0), make([p for p in parameters if id(p) not in theirs])]
        groups = [group for part in self._parts for group in part.param_groups]
        super().__init__(groups, {})
        self.param_groups = groups  # theirs, so that a schedule of the learning rate is theirs, too
        for part in self._parts:
            self.state.update(part.state)
            part.state = self.state

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            raise ValueError("MuonBeside takes no closure")
        for part in self._parts:
            part.step()
