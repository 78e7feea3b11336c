"""What thinwire's ways into trainers have in common: when to attach, how states are kept, which figures are logged."""

import io
from typing import Any

import torch
import torch.distributed as dist

from thinwire.torch import Attachment, ShardAttachment, attach
from thinwire.torch.statistics import scalars

AnyAttachment = Attachment | ShardAttachment


def is_alone() -> bool:
    """Whether there is nobody to exchange gradients with."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1


class Attached:
    """thinwire on the model that a trainer has wrapped, from one call of its training loop to the next."""

    def __init__(self, compressor: str, settings: dict[str, Any]):
        self.attachment: AnyAttachment | None = None  # None of a process that is alone
        self._compressor, self._settings = compressor, settings
        self._model: torch.nn.Module | None = None
        self._state: dict[str, Any] | None = None  # of all ranks, until there is an attachment that takes it

    def to(self, model: torch.nn.Module, scaler: Any = None) -> None:
        """Attaches, unless it is so already. What was loaded before goes to the attachment. All workers call this together."""
        if is_alone():
            return
        model = getattr(model, "_orig_mod", model)  # torch.compile() of a wrapped model
        if self._model is not model:
            if self.attachment is not None:
                self.attachment.close()
            self.attachment = attach(model, self._compressor, **{"scaler": scaler, **self._settings})
            self._model = model
        if self._state is not None:
            self.attachment.load_state_dict(self._state)
            self._state = None

    def state(self) -> dict[str, Any] | None:
        """Of all ranks, on rank 0; None on others, and where there is nothing to be saved. All workers call this together. A process that is
        alone hands on what it has loaded: residuals wait there for somebody to send them to."""
        return self._state if self.attachment is None else self.attachment.state_dict(all_ranks=True, to=0)

    def load(self, state: dict[str, Any]) -> None:
        """Of all ranks, before to() or after it."""
        if self.attachment is None:
            self._state = state
        else:
            self.attachment.load_state_dict(state)

    def figures(self) -> dict[str, float]:
        """For a trainer's log: ``thinwire/ratio`` and so on."""
        return figures(self.attachment)


class SavedByAll:
    """For trainers that call state_dict() on every worker and save what rank 0 gets. Bytes are not taken for tensors to be moved."""

    def __init__(self, attached: Attached):
        self._attached = attached

    def state_dict(self) -> dict[str, Any]:
        file = io.BytesIO()
        torch.save(self._attached.state(), file)
        return {"thinwire": file.getvalue()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        state = torch.load(io.BytesIO(saved["thinwire"]), weights_only=True)
        if state is not None:
            self._attached.load(state)


def figures(attachment: AnyAttachment | None) -> dict[str, float]:
    """What stats() knows, as a log takes it; nothing of a process that is alone."""
    if attachment is None:
        return {}
    return {f"thinwire/{name}": value for name, value in scalars(attachment.stats()).items()}
