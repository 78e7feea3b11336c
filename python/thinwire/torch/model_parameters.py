"""The parameters of a model that are exchanged, and the models that cannot be served."""

import math
from collections.abc import Callable, Collection, Iterator
from glob import escape as glob_escape
from typing import NamedTuple

import torch
from torch import nn

from thinwire._native import ArgumentError, is_small

REDUCERS_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_DEVICES = ("cpu", "cuda")
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # of torch.compile() and activation checkpointing


class Travelling(NamedTuple):
    """A gradient as it travels."""

    name: str
    shape: list[int]  # as memory holds it
    dtype: torch.dtype
    device: torch.device


class TravellingParameters:
    """What a reducer is told of the gradients that it averages, by name and place."""

    def __init__(self, gradients: list[Travelling], names_in_model: list[str]):
        """Raises ArgumentError for what cannot be served. names_in_model: of all parameters, trained or not."""
        for gradient in gradients:
            _check_device(gradient)
        self.layout = [(gradient.name, gradient.shape) for gradient in gradients]
        self.elements = [math.prod(gradient.shape) for gradient in gradients]
        self.bytes = sum(elements * gradient.dtype.itemsize for elements, gradient in zip(self.elements, gradients, strict=True))
        self.any_on_device = any(gradient.device.type != "cpu" for gradient in gradients)
        self.dtypes = [str(gradient.dtype) for gradient in gradients]
        self.names_in_model = names_in_model
        # Of types that are summed without the reducer.
        self._plain = {index for index, gradient in enumerate(gradients) if gradient.dtype not in REDUCERS_TYPES}

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.layout]

    def check_types(self, compressors: list[str]) -> None:
        """Raises ArgumentError where a compressor does not take its parameter's type."""
        for index in self._plain:
            if compressors[index] != "none":
                name = self.names[index]
                raise ArgumentError(
                    f"parameter {name!r} is {self.dtypes[index]}, and {compressors[index]!r} takes "
                    f"{', '.join(map(str, REDUCERS_TYPES))}. Exempt it by a rule, {{{name!r}: 'none'}}, or convert it"
                )

    @property
    def plain_rules(self) -> list[tuple[str, str]]:
        """That exempt the parameters whose type no compressor takes."""
        return [(glob_escape(self.names[index]), "none") for index in sorted(self._plain)]

    def go_as_they_are(self, compressors: list[str]) -> bool:
        """Whether all that a reducer could do is a plain sum. It adds up 16-bit gradients as float32."""
        return all(spec == "none" for spec in compressors) and not {"torch.bfloat16", "torch.float16"}.intersection(self.dtypes)

    def rules_here(self, rules: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Rules for the model's names, for those of the layout."""
        return rules

    def is_small(self, index: int) -> bool:
        """Whether it is sent as it is unless a rule says otherwise."""
        return is_small(self.layout[index][1])

    def suit_the_reducer(self, indices: list[int]) -> bool:
        """Whether it takes their type, which is the same for all parameters of a bucket."""
        return not indices or indices[0] not in self._plain


class ModelParameters(TravellingParameters):
    """The trained parameters; a tied parameter counts once, under its first name. Names are those of the model's own modules, without
    what wrappers put into them."""

    def __init__(self, module: nn.Module, ignored: Collection[str] = ()):
        """``ignored``: names that are left out. Raises ArgumentError for a model that cannot be served, saying why and what to do."""
        trained = list(trained_parameters(module, ignored))
        super().__init__(
            [Travelling(name, list(in_memory(parameter).shape), parameter.dtype, parameter.device) for name, parameter in trained],
            [own_name(name) for name, _ in module.named_parameters()],
        )
        self._index_of = {id(parameter): index for index, (_, parameter) in enumerate(trained)}

    def indices(self, parameters: list[torch.Tensor]) -> list[int]:
        """Places in the layout. DDP keeps the parameters themselves, so that their identity tells them apart."""
        try:
            return [self._index_of[id(parameter)] for parameter in parameters]
        except KeyError:
            raise ArgumentError(
                "DDP exchanges a parameter that required no gradient when thinwire was attached; attach after freezing"
            ) from None


def trained_parameters(module: nn.Module, ignored: Collection[str] = ()) -> Iterator[tuple[str, nn.Parameter]]:
    """By the names that ModelParameters gives them, in its order."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and name not in ignored:
            yield own_name(name), parameter


def in_memory(parameter: torch.Tensor) -> torch.Tensor:
    """With dimensions in the order in which memory holds them, as DDP's buckets do (channels_last)."""
    stride: Callable[[int], int] = parameter.stride
    order = sorted(range(parameter.dim()), key=stride, reverse=True)
    permuted = parameter.permute(order)
    return permuted if permuted.is_contiguous() and not parameter.is_contiguous() else parameter


def own_name(name: str) -> str:
    """Without what wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _check_device(gradient: Travelling) -> None:
    if gradient.device.type not in _DEVICES:
        raise ArgumentError(f"parameter {gradient.name!r} is on {gradient.device}; thinwire serves {' and '.join(_DEVICES)}")
