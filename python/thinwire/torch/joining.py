"""join(), which cannot work with an attachment."""

import types
import weakref
from typing import Any, NoReturn

from torch.nn.parallel import DistributedDataParallel

from thinwire._native import ArgumentError


class CheckedJoin:
    """Stands in for a model's join() while thinwire is attached: only ``enable=False`` passes."""

    def __init__(self, model: DistributedDataParallel):
        self._model = weakref.ref(model)

    def __call__(self, divide_by_initial_world_size: bool = True, enable: bool = True, *others: Any, **options: Any) -> Any:
        if enable:
            _refuse()
        return DistributedDataParallel.join(self._model(), divide_by_initial_world_size, enable, *others, **options)

    def __reduce__(self) -> Any:
        return _own_join, (self._model(),)  # a copied model joins as any other


def _own_join(model: DistributedDataParallel) -> Any:
    return types.MethodType(DistributedDataParallel.join, model)


def refuse_join(model: DistributedDataParallel) -> None:
    model.join = CheckedJoin(model)


def allow_join(model: DistributedDataParallel) -> None:
    model.__dict__.pop("join", None)


def refuse_enabled_join(model: DistributedDataParallel) -> None:
    """Where the context was entered some other way."""
    if model._join_config.enable:
        _refuse()


def _refuse() -> NoReturn:
    raise ArgumentError(
        "join() cannot work with thinwire: a worker that has run out of inputs would have to take part in its peers' "
        "compressed exchanges, and PyTorch shadows plain all-reduce only. Give every worker the same number of batches, or "
        "pass enable=False"
    )
