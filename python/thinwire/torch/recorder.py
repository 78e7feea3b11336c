"""Gradients of a training run in files, for research on compressors."""

import json
from pathlib import Path

import numpy
import torch
from torch import nn

from thinwire._native import ArgumentError


class GradientRecorder:
    """Writes one worker's gradients of some steps, as ``thinwire exchange``, ``inspect`` and ``compare`` read them.

    ``record()`` is called after ``backward()`` and before gradients are averaged or changed: in a process by itself, or
    under DDP's ``no_sync()``. Two files lie in ``folder`` then: ``gradients_<rank>.npy``, float32 of shape (steps, 1,
    elements), and ``layout.json``, a list of ``name``, ``shape`` and ``offset``. Parameters whose gradient is None count
    as zeros.

    names: only these parameters; None: all that require a gradient. Raises ArgumentError.
    """

    def __init__(self, module: nn.Module, folder: str | Path, steps: int, rank: int = 0, names: list[str] | None = None):
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        missing = [name for name in names or [] if name not in trained]
        if missing:
            raise ArgumentError(f"there is no trained parameter {missing[0]!r}; there are {', '.join(trained)}")
        if steps < 1:
            raise ArgumentError(f"steps is {steps}; it must be at least 1")
        self._parameters = [trained[name] for name in (names or trained)]
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        layout, offset = [], 0
        for name in names or trained:
            layout.append({"name": name, "shape": list(trained[name].shape), "offset": offset})
            offset += trained[name].numel()
        (folder / "layout.json").write_text(json.dumps(layout, indent=1) + "\n")
        self._rows = numpy.lib.format.open_memmap(
            folder / f"gradients_{rank}.npy", mode="w+", dtype=numpy.float32, shape=(steps, 1, offset)
        )
        self.recorded = 0

    @property
    def is_full(self) -> bool:
        """Whether all steps are there."""
        return self.recorded == len(self._rows)

    @torch.no_grad()
    def record(self) -> None:
        """Takes the gradients as they are now; does nothing once all steps are there."""
        if self.is_full:
            return
        row, offset = self._rows[self.recorded, 0], 0
        for parameter in self._parameters:
            part = row[offset : offset + parameter.numel()]
            part[:] = 0 if parameter.grad is None else parameter.grad.detach().float().cpu().numpy().ravel()
            offset += parameter.numel()
        self.recorded += 1
        if self.is_full:
            self._rows.flush()


def read_recording(folder: str | Path) -> tuple[numpy.ndarray, list[dict]]:
    """All workers' gradients, of shape (steps, workers, elements), and the layout."""
    folder = Path(folder)
    files = sorted(folder.glob("gradients_*.npy"), key=lambda path: int(path.stem.split("_")[1]))
    if not files:
        raise ArgumentError(f"there is no gradients_<rank>.npy in {folder}")
    recorded = [numpy.load(path) for path in files]
    for path, gradients in zip(files, recorded, strict=True):
        if gradients.ndim != 3:
            raise ArgumentError(f"{path} has shape {gradients.shape}, and a recording (steps, 1, elements); record it again")
    return numpy.concatenate(recorded, 1), json.loads((folder / "layout.json").read_text())
