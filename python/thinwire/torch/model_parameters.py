"""The parameters of a DDP model whose gradients are exchanged, and the models that cannot be served."""

from collections.abc import Callable, Iterator
from typing import NoReturn

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire._native import ArgumentError

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_DEVICES = ("cpu", "cuda")


class ModelParameters:
    """The trained parameters, by name and place; a tied parameter counts once, under its first name."""

    def __init__(self, ddp_model: DistributedDataParallel):
        """Raises ArgumentError for a model that cannot be served, saying why and what to do."""
        trained = list(_trained(ddp_model))
        for name, parameter in trained:
            _check(name, parameter)
        # Names and shapes, in the order of the module.
        self.layout = [(name, _shape_in_memory(parameter)) for name, parameter in trained]
        self.elements = [parameter.numel() for _, parameter in trained]
        self.bytes = sum(parameter.numel() * parameter.element_size() for _, parameter in trained)
        self.dtypes = [str(parameter.dtype) for _, parameter in trained]
        self._index_of = {id(parameter): index for index, (_, parameter) in enumerate(trained)}

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.layout]

    def indices(self, parameters: list[torch.Tensor]) -> list[int]:
        """Places in the layout. DDP keeps the parameters themselves, so that their identity tells them apart."""
        try:
            return [self._index_of[id(parameter)] for parameter in parameters]
        except KeyError:
            raise ArgumentError(
                "DDP exchanges a parameter that required no gradient when thinwire was attached; attach after freezing"
            ) from None


def refuse_join(*_: object, **__: object) -> NoReturn:
    """Stands in for a model's join_hook()."""
    raise ArgumentError(
        "join() cannot work with thinwire: a worker that has run out of inputs would have to take part in its peers' "
        "compressed exchanges, and PyTorch shadows plain all-reduce only. Give every worker the same number of batches"
    )


def check_unjoined(ddp_model: DistributedDataParallel) -> None:
    if ddp_model._join_config.enable:
        refuse_join()


def _trained(ddp_model: DistributedDataParallel) -> Iterator[tuple[str, nn.Parameter]]:
    ignored = getattr(ddp_model, "parameters_to_ignore", set())
    for name, parameter in ddp_model.module.named_parameters():
        if parameter.requires_grad and name not in ignored:
            yield name, parameter


def _check(name: str, parameter: nn.Parameter) -> None:
    if parameter.dtype not in _DTYPES:
        raise ArgumentError(
            f"parameter {name!r} is {parameter.dtype}; thinwire exchanges {', '.join(map(str, _DTYPES))}. "
            "Convert the model, or keep the parameter out of DDP"
        )
    if parameter.device.type not in _DEVICES:
        raise ArgumentError(f"parameter {name!r} is on {parameter.device}; thinwire serves {' and '.join(_DEVICES)}")


def _shape_in_memory(parameter: torch.Tensor) -> list[int]:
    """The shape with dimensions in the order in which memory holds them, as DDP's buckets do (channels_last)."""
    stride: Callable[[int], int] = parameter.stride
    order = sorted(range(parameter.dim()), key=stride, reverse=True)
    in_memory = parameter.permute(order)
    dense = in_memory.is_contiguous() and not parameter.is_contiguous()
    return list(in_memory.shape if dense else parameter.shape)
