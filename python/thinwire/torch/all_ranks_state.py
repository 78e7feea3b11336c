"""An averager's state for frameworks that call state_dict() on every worker and store what one of them returns."""

import io
from typing import TYPE_CHECKING, Any

import torch

from thinwire._native import StateError

if TYPE_CHECKING:
    from thinwire.torch.averager import Averager


class AllRanksState:
    """What torch.distributed.checkpoint, accelerate's register_for_checkpointing() and others like them may be given.

    All workers call state_dict() together. Each gets the state of all of them, as the bytes of one torch.save(): a checkpoint
    neither merges ranks nor compares sizes then, and it loads into another number of workers too.
    """

    def __init__(self, averager: "Averager"):
        self._averager = averager

    def state_dict(self) -> dict[str, Any]:
        file = io.BytesIO()
        torch.save(self._averager.state_dict(all_ranks=True), file)
        return {"all_ranks": file.getvalue()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As Averager.load_state_dict(). Raises StateError."""
        if not isinstance(state, dict) or not isinstance(state.get("all_ranks"), bytes):
            raise StateError("this is no state of all ranks, as all_ranks.state_dict() returns")
        self._averager.load_state_dict(torch.load(io.BytesIO(state["all_ranks"]), weights_only=True))
