"""thinwire in Hugging Face's Trainer, by one line: attach(trainer, "casq:bits=2")."""

import functools
import os
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from thinwire._trainers import Attached

FILE = "thinwire.pt"  # in each of the Trainer's checkpoints


class ThinwireCallback(TrainerCallback):
    """Made by attach()."""

    def __init__(self, trainer: Trainer, attached: Attached):
        self._trainer, self._attached = trainer, attached
        self.resumes_from: str | None = None  # the checkpoint that train() was given

    @property
    def attachment(self) -> Any:
        """What thinwire.torch.attach() has returned; None before train(), and in a process that is alone."""
        return self._attached.attachment

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        saved = os.path.join(self.resumes_from or "", FILE)
        if self.resumes_from is not None and os.path.exists(saved):
            self._attached.load(torch.load(saved, weights_only=True))
        self._attached.to(self._trainer.model_wrapped, self._trainer.accelerator.scaler)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if args.save_only_model:
            return
        state_of_all = self._attached.state()  # on every worker
        if state_of_all is not None:
            torch.save(state_of_all, os.path.join(args.output_dir, f"checkpoint-{state.global_step}", FILE))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any) -> None:
        figures = self._attached.figures()
        if logs is not None:
            logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)


def attach(trainer: Trainer, compressor: str = "auto", **settings: Any) -> ThinwireCallback:
    """The gradients of ``trainer`` travel compressed whenever it trains on several workers, by DDP or FSDP2.

    compressor, settings: those of thinwire.torch.attach(); the scaler is the Trainer's own. Its checkpoints hold what thinwire remembers,
    in a file ``thinwire.pt``, which train(resume_from_checkpoint=...) reads, also with another number of workers; what it logs has
    thinwire's figures. A process that is alone trains as without thinwire. Returns a callback, whose ``attachment`` is what
    thinwire.torch.attach() returns.
    """
    callback = ThinwireCallback(trainer, Attached(compressor, settings))
    # In front, so that all others see the figures in the logs.
    trainer.callback_handler.callbacks.insert(0, callback)
    train = trainer.train

    @functools.wraps(train)
    def train_from(resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        last = get_last_checkpoint(trainer.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        callback.resumes_from = last or None
        return train(resume_from_checkpoint, *args, **kwargs)

    trainer.train = train_from  # callbacks are not told which checkpoint a training goes on from
    return callback
