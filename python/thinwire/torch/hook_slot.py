"""What DDP holds of thinwire: it keeps a communication hook for good, so an attachment sits in a slot that can be emptied."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.
import weakref
from typing import TYPE_CHECKING, Any, Optional

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire._native import StateError
from thinwire.torch.joining import allow_join, refuse_enabled_join, refuse_join

if TYPE_CHECKING:
    from thinwire.torch.attachment import Attachment


class HookSlot:
    """An attachment can be taken out of it and another put in. ``broken``: why DDP can do nothing more with the model."""

    def __init__(self, model: DistributedDataParallel | None = None) -> None:
        self._model = None if model is None else weakref.ref(model)
        self.attachment: Optional["Attachment"] = None
        self.broken: str | None = None

    def belongs_to(self, model: DistributedDataParallel) -> bool:
        return self._model is not None and self._model() is model

    def fill(self, model: DistributedDataParallel, attachment: "Attachment") -> None:
        """Puts the attachment to work."""
        if not self._is_registered(model):
            model._comm_hooks.clear()  # of a copy: those of the model that it was copied from
            model.register_comm_hook(self, average_bucket)
            model.register_forward_pre_hook(check_before_forward)
        refuse_join(model)
        self.attachment = attachment

    def empty(self, model: DistributedDataParallel, broken: str | None) -> None:
        """The hook stays, and refuses to work."""
        self.attachment = None
        self.broken = self.broken or broken
        allow_join(model)

    def __reduce__(self) -> Any:
        return HookSlot, ()  # a copied or loaded model has an engine of its own, to which no hook was given

    def _is_registered(self, model: DistributedDataParallel) -> bool:
        return any(state is self for _, state in model._comm_hooks)


def slot_of(model: DistributedDataParallel) -> HookSlot | None:
    """The model's own slot, if thinwire was ever attached to it."""
    return next((state for _, state in model._comm_hooks if isinstance(state, HookSlot) and state.belongs_to(model)), None)


def check_before_forward(model: DistributedDataParallel, _: Any) -> None:
    """A forward pre-hook: what cannot work is refused here, as DDP is in disorder after a backward pass that fails."""
    slot = slot_of(model)
    if slot is None or not torch.is_grad_enabled():
        return
    if slot.broken is not None:
        raise StateError(slot.broken)
    if slot.attachment is not None:
        refuse_enabled_join(model)
        slot.attachment.check_usable()
    elif model.require_backward_grad_sync:
        raise StateError(
            "thinwire was closed on this model, and DDP cannot drop a hook: attach() again, or wrap the module in a new DDP"
        )


def average_bucket(slot: HookSlot, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook."""
    if slot.attachment is None:
        slot.broken = "a backward pass failed on this model since thinwire had been closed on it; wrap the module in a new DDP"
        raise StateError(slot.broken)
    return slot.attachment.average(bucket)
