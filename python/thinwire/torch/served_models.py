"""Which models attach() and LocalSteps serve, and what they say to others."""

from typing import Any, NoReturn

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire._native import ArgumentError
from thinwire.torch.fully_sharded import is_fully_sharded
from thinwire.torch.hook_slot import HookSlot, slot_of
from thinwire.torch.joining import refuse_enabled_join


def check_is_ddp(model: Any) -> None:
    """Raises ArgumentError, which says what to do with this model."""
    if not isinstance(model, DistributedDataParallel):
        _refuse(model)


def check_trains_alone(model: Any, optimizer: Any) -> None:
    """Raises ArgumentError unless a worker can train the model by this optimizer without the others."""
    if isinstance(model, DistributedDataParallel):
        raise ArgumentError(
            "LocalSteps takes a module that each worker trains alone; got DistributedDataParallel, which averages in every step. Pass "
            "its module: with DDP in a group within each host, and group= of LocalSteps between the hosts, ddp_model.module"
        )
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"LocalSteps takes a torch.nn.Module; got {type(model).__name__}")
    if _is_sharded(model) or _has_distributed_tensors(model):
        raise ArgumentError(
            f"LocalSteps takes a module that each worker holds whole; got {type(model).__name__}, whose parameters are sharded (FSDP or "
            "tensor parallel). Use a module that is not sharded, if it fits"
        )
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if not trained:
        raise ArgumentError(f"{type(model).__name__} has no parameter that requires a gradient; there is nothing to average")
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"optimizer = {type(optimizer).__name__}; allowed: the torch.optim.Optimizer that trains the model")
    held = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
    foreign = [parameter for parameter in held if id(parameter) not in trained]
    if foreign:
        raise ArgumentError(
            f"the optimizer trains a parameter of shape {list(foreign[0].shape)} that the model does not have, and workers would drift "
            "apart in it; pass a module that has all of them, such as a torch.nn.ModuleList of your models"
        )


def free_slot(model: DistributedDataParallel) -> HookSlot:
    """The slot of an attachment that was closed, or a new one. Raises ArgumentError where a hook is in the way."""
    slot = slot_of(model)
    if slot is not None and slot.attachment is not None:
        raise ArgumentError("thinwire is attached to this model already; close() that attachment first")
    if slot is not None and slot.broken is not None:
        raise ArgumentError(slot.broken)
    if getattr(model, "mixed_precision", None) is not None:
        raise ArgumentError(
            "DDP(mixed_precision=...) averages through a hook of its own, and DDP allows one; use torch.autocast instead, "
            "or convert the module's parameters"
        )
    if slot is None and (hook := _foreign_hook(model)):
        raise ArgumentError(f"this model has a communication hook already ({hook}), and DDP allows one; wrap the module in a new DDP")
    refuse_enabled_join(model)
    return slot or HookSlot(model)


def _foreign_hook(model: DistributedDataParallel) -> str | None:
    """By name. Hooks of PyTorch that are written in C++ show in the log alone."""
    for hook, state in model._comm_hooks:
        if not isinstance(state, HookSlot):  # a copied model brings along a slot that is not its own
            return getattr(hook, "__qualname__", repr(hook))
    return model._get_ddp_logging_data().get("comm_hook") if slot_of(model) is None else None


def _refuse(model: Any) -> NoReturn:
    own, bases = type(model).__name__, type(model).__mro__
    start = f"attach() takes a DistributedDataParallel model, or a module that fully_shard() has prepared; got {own}"
    if any(base.__module__.startswith("torch.distributed._composable.replicate") for base in bases):
        raise ArgumentError(f"{start}, made by replicate(), which takes no communication hook. Wrap the module in DistributedDataParallel instead")
    if any(base.__name__ == "FullyShardedDataParallel" for base in bases):
        raise ArgumentError(
            f"{start}, FSDP's first version. Call torch.distributed.fsdp.fully_shard() on the module instead, and attach() to that"
        )
    if any(base.__module__.startswith("torch.distributed.pipelining") for base in bases):
        raise ArgumentError(
            f"{start}, of a pipeline, whose stages reduce gradients outside of backward passes. Train without the pipeline, each stage's module "
            "in DistributedDataParallel or by fully_shard()"
        )
    if is_fully_sharded(getattr(model, "_orig_mod", None)):
        raise ArgumentError(f"{start}, compiled as a whole. attach() to the module that fully_shard() has prepared, and compile it then")
    if isinstance(model, nn.Module) and any(is_fully_sharded(module) for module in model.modules()):
        raise ArgumentError(f"{start}, of which fully_shard() has prepared parts. Call fully_shard() on the whole too, as FSDP wants it")
    if isinstance(model, nn.Module) and _has_distributed_tensors(model):
        raise ArgumentError(
            f"{start}, whose parameters are divided among workers (tensor parallel), and gradients of such parts are no gradients of the "
            "others' parts. Take DistributedDataParallel, or fully_shard() over all workers instead"
        )
    if isinstance(getattr(model, "_orig_mod", None), DistributedDataParallel):
        raise ArgumentError(f"{start}, a compiled DDP model. attach() to the DDP model first, and compile it then")
    hint = " Wrap the module first" if isinstance(model, nn.Module) else ""
    raise ArgumentError(f"{start}.{hint}")


def _has_distributed_tensors(model: nn.Module) -> bool:
    return any(type(parameter.data).__name__ == "DTensor" for parameter in model.parameters())


def _is_sharded(model: Any) -> bool:
    return any("FSDP" in base.__name__ or "FullyShardedDataParallel" in base.__name__ for base in type(model).__mro__)
