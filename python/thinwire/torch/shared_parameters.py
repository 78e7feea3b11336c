"""The parameters that all workers have in common, which an outer optimizer moves by the mean of what workers have changed."""

import copy
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from thinwire._native import ArgumentError, StateError
from thinwire.torch.lanes import is_finite
from thinwire.torch.model_parameters import REDUCERS_TYPES, in_memory, trained_parameters

Outer = Callable[[list[torch.Tensor]], Optimizer]


def nesterov(parameters: Iterable[torch.Tensor]) -> Optimizer:
    """DiLoCo's outer optimizer (Douillard et al. 2023, arXiv 2311.08105)."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


class SharedParameters:
    """Copies on the host, one for each of a worker's own parameters: float32, or its own type where the reducer takes that not.

    Dimensions are in the order of memory, as in the reducer's layout.
    """

    def __init__(self, own: Sequence[nn.Parameter], make_outer: Outer):
        """Raises ArgumentError for what makes no optimizer of them."""
        self._own = list(own)
        with torch.no_grad():
            self.values = [in_memory(parameter).to("cpu", _type_of(parameter), copy=True).contiguous() for parameter in self._own]
        self.outer = _made(make_outer, self.values)

    def check_covers(self, model: nn.Module) -> None:
        """Raises StateError where the model trains a parameter that is not among them, in which workers would drift apart."""
        known = {id(parameter) for parameter in self._own}
        for name, parameter in trained_parameters(model):
            if id(parameter) not in known:
                raise StateError(f"{name!r} is trained, and required no gradient when LocalSteps was made; make a new one after unfreezing")

    @torch.no_grad()
    def take_change(self, index: int, change: torch.Tensor) -> None:
        """Writes into ``change`` by how much training has moved the worker's own parameter away from what it was given: the
        pseudo-gradient, which the outer optimizer will find replaced by its mean."""
        own, value = self._on_host(index), self.values[index]
        change = change.view(value.shape)
        # Own parameters of 16 bits were given the rounded value: what rounding took is no change.
        torch.sub(value.to(own.dtype).to(value.dtype), own.to(value.dtype), out=change)
        value.grad = change

    @torch.no_grad()
    def give(self, index: int, kept: float) -> None:
        """The worker's own parameter becomes the shared one, or keeps a share of what it was."""
        own, value = in_memory(self._own[index]), self.values[index]
        own.copy_(value if kept == 0 else torch.lerp(value, self._on_host(index).to(value.dtype), kept))

    @torch.no_grad()
    def copies_of_own(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self._own]

    @torch.no_grad()
    def put_back(self, copies: list[torch.Tensor]) -> None:
        for parameter, copied in zip(self._own, copies, strict=True):
            parameter.copy_(copied)

    def is_finite(self, indices: Iterable[int]) -> bool:
        """Whether the worker's own parameters are."""
        return all(is_finite(self._own[index].detach()) for index in indices)

    def heal(self, indices: Iterable[int], inner: Optimizer) -> None:
        """Own parameters become the shared ones, and the inner optimizer forgets what of their state is not finite."""
        for index in indices:
            self.give(index, 0)
            for state in inner.state.get(self._own[index], {}).values():
                if isinstance(state, torch.Tensor) and state.is_floating_point():
                    state.nan_to_num_(0, 0, 0)

    @torch.no_grad()
    def step(self) -> None:
        """Moves those that have a pseudo-gradient."""
        self.outer.step()

    def drop_changes(self) -> None:
        for value in self.values:
            value.grad = None

    def checksums(self) -> list[str]:
        """Of the worker's own parameters as they are."""
        return [f"{zlib.crc32(self._on_host(index).contiguous().view(-1).view(torch.uint8).numpy()):08x}" for index in range(len(self._own))]

    def state(self, names: Sequence[str]) -> dict[str, Any]:
        """Values, pseudo-gradients that are under way, and the outer optimizer's state."""
        values = {name: value.clone() for name, value in zip(names, self.values, strict=True)}
        changes = {name: value.grad.clone() for name, value in zip(names, self.values, strict=True) if value.grad is not None}
        return {"values": values, "changes": changes, "optimizer": copy.deepcopy(self.outer.state_dict())}

    def load(self, state: dict[str, Any], names: Sequence[str]) -> None:
        """Raises StateError, and changes nothing, for what is no such state."""
        try:
            values = [state["values"][name] for name in names]
            changes = [state["changes"].get(name) for name in names]
            fits = all(_like(new, value) and (change is None or _like(change, value))
                       for new, change, value in zip(values, changes, self.values, strict=True))
            if not fits:
                raise ValueError("shapes or types differ")
            self.outer.load_state_dict(state["optimizer"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"the state's shared parameters do not fit: {type(error).__name__}: {error}") from error
        for value, new, change in zip(self.values, values, changes, strict=True):
            value.copy_(new)
            value.grad = None if change is None else change.clone()

    def _on_host(self, index: int) -> torch.Tensor:
        return in_memory(self._own[index].detach()).cpu()


def _type_of(parameter: torch.Tensor) -> torch.dtype:
    return torch.float32 if parameter.dtype in REDUCERS_TYPES else parameter.dtype


def _like(saved: torch.Tensor, value: torch.Tensor) -> bool:
    return saved.shape == value.shape and saved.dtype == value.dtype


def _made(make_outer: Outer, values: list[torch.Tensor]) -> Optimizer:
    said = "allowed: a function that takes a list of tensors and returns a torch.optim.Optimizer of them, like lambda p: torch.optim.SGD(p, lr=1)"
    if not callable(make_outer):
        raise ArgumentError(f"outer = {make_outer!r}; {said}")
    outer = make_outer(list(values))
    if not isinstance(outer, Optimizer):
        raise ArgumentError(f"outer made {outer!r}; {said}")
    held = {id(value) for group in outer.param_groups for value in group["params"]}
    if held != {id(value) for value in values}:
        raise ArgumentError(f"outer made an optimizer of other tensors than it was given; {said}")
    return outer
