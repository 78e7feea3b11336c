"""thinwire in Hugging Face's accelerate, by one line behind prepare(): attach(accelerator, model, "casq:bits=2")."""

from typing import Any

import torch
from accelerate import Accelerator

from thinwire._trainers import AnyAttachment, Attached, SavedByAll, figures


def attach(accelerator: Accelerator, model: torch.nn.Module, compressor: str = "auto", **settings: Any) -> AnyAttachment | None:
    """The gradients of ``model``, as accelerator.prepare() has returned it, travel compressed.

    compressor, settings: those of thinwire.torch.attach(); the scaler is the accelerator's own. accelerator.save_state() and load_state() save
    and load what thinwire remembers, also with another number of workers. Returns what thinwire.torch.attach() does, or None in a process that is
    alone, which trains as without thinwire.
    """
    attached = Attached(compressor, settings)
    attached.to(model, accelerator.scaler)
    accelerator.register_for_checkpointing(SavedByAll(attached))
    return attached.attachment


def log(accelerator: Accelerator, attachment: AnyAttachment | None, step: int | None = None) -> None:
    """accelerator.log() of thinwire's figures: ``thinwire/ratio`` and so on; of a process that is alone nothing."""
    if values := figures(attachment):
        accelerator.log(values, step=step)
