"""thinwire in PyTorch Lightning, by one line: Trainer(callbacks=[ThinwireCallback("casq:bits=2")])."""

import sys
from typing import Any

if "pytorch_lightning" in sys.modules:  # one library under two names, whose callbacks are different classes
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

from thinwire._trainers import Attached, SavedByAll


class ThinwireCallback(Callback):
    """Gradients travel compressed whenever the Trainer fits a module on several workers, with the strategy "ddp".

    compressor, settings: those of thinwire.torch.attach(); the scaler is the Trainer's own. Its checkpoints hold what thinwire remembers,
    also for another number of workers; its loggers get thinwire's figures every ``log_every_n_steps`` steps. A process that is alone trains as
    without thinwire.
    """

    def __init__(self, compressor: str = "auto", **settings: Any):
        self._attached = Attached(compressor, settings)
        self._saved = SavedByAll(self._attached)
        self._logged = -1  # the last step whose figures were logged

    @property
    def attachment(self) -> Any:
        """What thinwire.torch.attach() has returned; None before fit(), and in a process that is alone."""
        return self._attached.attachment

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._attached.to(trainer.strategy.model, getattr(trainer.precision_plugin, "scaler", None))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step == self._logged or step % trainer.log_every_n_steps != 0:
            return
        self._logged = step
        if figures := self._attached.figures():
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=step)

    def state_dict(self) -> dict[str, Any]:
        return self._saved.state_dict()  # Lightning asks on every worker

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved.load_state_dict(state_dict)  # comes before the module is wrapped
